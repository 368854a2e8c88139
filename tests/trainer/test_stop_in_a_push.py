"""A stop while no server takes the weights: nobody waits for one, and what was trained is kept."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_trainer import loop
from grpo_trainer.config import WeightsConfig
from grpo_trainer.errors import RunError
from grpo_trainer.ranks import Ranks
from grpo_trainer.stages import push as stage
from grpo_trainer.stop_signal import StopRequested, StopSignal

FAILURE = stage.Failure("no rollout server answers", final=False)


class Pusher:
    """Rank 0's, of which every attempt fails; a stop is asked for during one of them."""

    def __init__(self, *, stop_in_attempt: int | None):
        self.stop, self.session, self.attempts = StopSignal(), None, 0
        self._stop_in_attempt = stop_in_attempt

    def open(self, *_: object) -> stage.Failure:
        self.attempts += 1
        if self.attempts == self._stop_in_attempt:
            self.stop.requested = True
        return FAILURE


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pusher], None]:
    monkeypatch.setattr(stage, "plan_push", lambda *_: None)
    monkeypatch.setattr(stage, "PAUSE_BETWEEN_ATTEMPTS_S", 0.1)
    engine: Any = SimpleNamespace(named_parameters_for_push=list)
    config = WeightsConfig(push_deadline_s=1.0)
    return lambda pusher: stage.push(3, engine, Ranks(0, 1, 0), pusher, config)  # type: ignore[arg-type, return-value]


def test_a_stop_ends_the_attempts(attempt: Callable[[Pusher], None]):
    pusher = Pusher(stop_in_attempt=2)
    with pytest.raises(StopRequested):
        attempt(pusher)
    assert pusher.attempts == 2


def test_without_a_stop_they_go_on_until_the_deadline(attempt: Callable[[Pusher], None]):
    pusher = Pusher(stop_in_attempt=None)
    with pytest.raises(RunError, match="version 3 could not be pushed"):
        attempt(pusher)
    assert pusher.attempts > 2


def test_the_step_before_such_a_push_is_written_and_saved(monkeypatch: pytest.MonkeyPatch):
    did: list[tuple[str, int]] = []

    def push_policy(_: object, *, version: int) -> None:
        did.append(("push", version))
        if version == 7:
            raise StopRequested

    monkeypatch.setattr(loop, "push_policy", push_policy)
    monkeypatch.setattr(loop, "finish_step", lambda _, step: did.append(("finish", step)))
    monkeypatch.setattr(loop, "save", lambda _, step: did.append(("save", step)))
    for name in ("check_canary", "sample_and_score", "build_updates_of", "optimize"):
        monkeypatch.setattr(loop, name, lambda *_, **__: [])
    config = SimpleNamespace(
        canary=SimpleNamespace(steps=0), eval=SimpleNamespace(eval_steps=0), checkpoint=SimpleNamespace(save_steps=0)
    )
    run: Any = SimpleNamespace(config=config, max_steps=9)
    assert loop.train(run, step=4) == 6
    assert did == [("push", 5), ("push", 6), ("finish", 5), ("push", 7), ("finish", 6), ("save", 6)]
