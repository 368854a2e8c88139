"""How the loop ends when a stop is asked for or the servers fail: nobody waits for long, what was trained is kept."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

import pytest

from grpo_trainer import loop
from grpo_trainer.callbacks import Callbacks, StopRun
from grpo_trainer.checkpoint.best import BestCheckpoint
from grpo_trainer.config.weights import WeightsConfig
from grpo_trainer.errors import CallbackError, DiskError, GuardStop, RunError, ServersError, UpdateError
from grpo_trainer.fleet import push as stage
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.guarding import WayBack
from grpo_trainer.observe.decisions import Decision
from grpo_trainer.orchestrator import Orchestrator
from grpo_trainer.ranks.stop_signal import StopRequested, StopSignal

FAILURE = stage.AttemptFailed("no rollout server answers", final=False)


class Pusher:
    """Rank 0's, of which every attempt fails; a stop is asked for during one of them."""

    def __init__(self, *, stop_in_attempt: int | None):
        self.stop, self.session, self.attempts = StopSignal(), None, 0
        self._stop_in_attempt = stop_in_attempt

    def open(self, *_: object) -> NoReturn:
        self.attempts += 1
        if self.attempts == self._stop_in_attempt:
            self.stop.requested = True
        raise FAILURE


class Clock:
    """In place of the module `time`: only pauses take time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pusher], None]:
    monkeypatch.setattr(stage, "PAUSE_BETWEEN_ATTEMPTS_S", 0.25)
    monkeypatch.setattr(stage, "time", Clock())
    export: Any = SimpleNamespace()
    config = WeightsConfig(push_deadline_s=1.0)
    return lambda pusher: stage.push(3, export, pusher, config)  # type: ignore[arg-type, return-value]


def test_a_stop_ends_the_attempts(attempt: Callable[[Pusher], None]):
    pusher = Pusher(stop_in_attempt=2)
    with pytest.raises(StopRequested):
        attempt(pusher)
    assert pusher.attempts == 2


def test_without_a_stop_they_go_on_until_the_deadline(attempt: Callable[[Pusher], None]):
    pusher = Pusher(stop_in_attempt=None)
    with pytest.raises(ServersError, match="version 3 could not be pushed"):
        attempt(pusher)
    assert pusher.attempts == 5, "at 0, 0.25, 0.5, 0.75 and 1 s"


class Steps:
    """A run from step 4 of 9 with its stages written down; `ending` is raised where step 6 does `where`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: str, ending: Exception | None, *, save_steps: int = 0):
        self.did: list[tuple[str, int]] = []
        self.completed: list[bool] = []
        self._where, self._ending = where, ending
        monkeypatch.setattr(loop, "sample_and_score", lambda _, version: self._note("sample", version))
        monkeypatch.setattr(loop, "push_policy", lambda _, version: self._note("push", version - 1))
        monkeypatch.setattr(loop, "evaluate", lambda _, step: self._note("eval", step))
        monkeypatch.setattr(loop, "save", lambda _, step, **__: self._note("save", step))
        monkeypatch.setattr(loop, "complete_save", lambda _, wait=True: self.completed.append(wait))
        for name in ("check_canary", "optimize"):
            monkeypatch.setattr(loop, name, lambda *_, **__: None)
        config = SimpleNamespace(
            canary=SimpleNamespace(steps=0),
            eval=SimpleNamespace(eval_steps=6),
            checkpoint=SimpleNamespace(save_steps=save_steps, patience=None),
            guards=SimpleNamespace(rollback_rules=[], steps=5),
            weights=WeightsConfig(),
            has_held_out_rows=True,
            run_dir=Path("no/such/run"),
        )
        self.journal = SimpleNamespace(finish_step=lambda step: self._note("finish", step), judge=self._judge)
        self.journal.decided, self.journal.failure = lambda step, decisions: None, None
        self.journal.totals, self.journal.has_updates = SimpleNamespace(evaluated_step=None), False
        self.journal.complete_step = lambda step: self.did.append(("complete", step))
        self.decisions: dict[int, Decision] = {}
        self.run: Any = SimpleNamespace(config=config, max_steps=9, journal=self.journal, best=BestCheckpoint())
        self.run.callbacks = Callbacks({}, step=4)

    def _judge(self) -> list[Decision]:
        _, step = self.did[-1]
        return [self.decisions[step]] if step in self.decisions else []

    def call(self, hook: Callable[[int, Any], None]) -> None:
        """Have the run call `hook` after each step."""
        self.run.callbacks = Callbacks({"own.py:hook": {"on_step": hook}}, step=4)

    def _note(self, name: str, step: int) -> dict[str, Any]:
        self.did.append((name, step))
        if self._ending is not None and (name, step) == (self._where, 6):
            raise self._ending
        return {"loss": 0.5}

    def last(self, count: int) -> list[tuple[str, int]]:
        return self.did[-count:]


def test_a_step_that_no_server_took_before_a_stop_is_written_and_saved(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "push", StopRequested())
    assert loop.train(steps.run, step=4) == 6
    assert steps.last(3) == [("push", 6), ("finish", 6), ("save", 6)]


@pytest.mark.parametrize(
    ("where", "afterwards"),
    [
        ("sample", [("save", 5)]),
        ("push", [("finish", 6), ("save", 6)]),
        ("eval", [("finish", 6), ("save", 6)]),
    ],
)
def test_servers_that_fail_end_the_run_with_every_step_saved(
    monkeypatch: pytest.MonkeyPatch, where: str, afterwards: list[tuple[str, int]]
):
    steps = Steps(monkeypatch, where, ServersError("nobody answers"))
    with pytest.raises(ServersError, match="nobody answers"):
        loop.train(steps.run, step=4)
    assert steps.last(1 + len(afterwards)) == [(where, 6), *afterwards]


@pytest.mark.parametrize("ending", [None, StopRequested(), ServersError("nobody answers"), RunError("another policy")])
@pytest.mark.parametrize("goes_back", [True, False])
def test_a_checkpoint_that_was_begun_is_completed_however_the_run_ends(
    monkeypatch: pytest.MonkeyPatch, ending: Exception | None, goes_back: bool
):
    steps = Steps(monkeypatch, "push", ending)
    steps.run.config.guards.rollback_rules = ["kl"] if goes_back else []
    with pytest.raises(RunError) if isinstance(ending, RunError) else nullcontext():
        loop.train(steps.run, step=4)
    assert steps.completed == [False, goes_back] * (2 if ending else 5) + [True]


@pytest.mark.parametrize("evaluated_step", [9, 6, None])
def test_a_run_whose_last_step_is_made_is_evaluated_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, evaluated_step: int | None
):
    """The push after that step, or its evaluation, may have been what ended it."""
    steps = Steps(monkeypatch, "eval", None)
    steps.journal.totals.evaluated_step = evaluated_step
    assert loop.train(steps.run, step=9) == 9
    assert steps.did == [("push", 9), *([] if evaluated_step == 9 else [("eval", 9), ("complete", 9)])]


def test_a_rule_that_stops_ends_the_run_before_the_push_with_the_step_saved(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "sample", None)
    steps.decisions = {5: Decision("kl", "warn", "it grows"), 6: Decision("kl", "stop", "it is large")}
    with pytest.raises(GuardStop, match=r"guards.kl stops the run after step 6: it is large.*guards.kl to warn"):
        loop.train(steps.run, step=4)
    assert steps.last(3) == [("sample", 6), ("finish", 6), ("save", 6)]


def test_a_log_that_cannot_be_written_ends_the_run_with_its_step_pushed_and_saved(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "sample", None)

    def finish(step: int) -> dict[str, Any]:
        if step == 6:
            steps.journal.failure = DiskError("completions.jsonl could not be written")
        return steps._note("finish", step)

    steps.journal.finish_step = finish
    with pytest.raises(DiskError, match="could not be written"):
        loop.train(steps.run, step=4)
    assert steps.last(5) == [("sample", 6), ("push", 6), ("eval", 6), ("finish", 6), ("save", 6)]


def test_a_callback_that_stops_or_fails_ends_the_run_with_its_step_pushed_and_saved(monkeypatch: pytest.MonkeyPatch):
    def stop(step: int, metrics: Any) -> None:
        if step == 6:
            raise ending

    for ending in (StopRun("the loss is low"), ValueError("no such metric")):
        steps = Steps(monkeypatch, "sample", None)
        decided: list[Any] = []
        steps.journal.decided = lambda *one, decided=decided: decided.append(one)
        steps.call(stop)
        steps.journal.totals.evaluated_step = 6
        if isinstance(ending, StopRun):
            assert loop.train(steps.run, step=4) == 6
            assert decided == [(6, [Decision("callbacks", "stop", "own.py:hook: the loss is low")])]
        else:
            with pytest.raises(CallbackError, match=r"own.py:hook raised ValueError: no such metric"):
                loop.train(steps.run, step=4)
        assert steps.last(5) == [("sample", 6), ("push", 6), ("eval", 6), ("finish", 6), ("save", 6)]


def test_a_callback_sees_the_step_that_no_server_took_and_does_not_hide_that(monkeypatch: pytest.MonkeyPatch):
    steps, seen = Steps(monkeypatch, "push", ServersError("nobody answers")), []

    def fail_late(step: int, metrics: Any) -> None:
        seen.append((step, dict(metrics)))
        if step == 6:
            raise ValueError

    steps.call(fail_late)
    with pytest.raises(ServersError, match="nobody answers"):
        loop.train(steps.run, step=4)
    assert seen == [(5, {"loss": 0.5}), (6, {"loss": 0.5})]
    assert steps.last(1) == [("save", 6)]


def test_a_rule_that_goes_back_ends_the_step_before_the_push_and_saves_nothing(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "sample", None)
    way_back = WayBack(Decision("kl", "rollback", "it is large"), 6, Path("checkpoint-4"), {"step": 4})
    monkeypatch.setattr(loop, "obey_guards", lambda _config, _journal, step: way_back if step == 6 else None)
    assert loop.train(steps.run, step=4) is way_back
    assert steps.last(2) == [("finish", 5), ("sample", 6)]


def test_a_step_is_not_saved_twice(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "sample", ServersError("nobody answers"), save_steps=5)
    with pytest.raises(ServersError):
        loop.train(steps.run, step=4)
    assert steps.did.count(("save", 5)) == 1


def test_the_best_policy_is_saved_at_once_and_a_run_without_a_better_one_ends(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "sample", None)
    steps.run.config.eval.eval_steps, steps.run.config.checkpoint.patience = 1, 2
    steps.run.best = best = BestCheckpoint("eval_accuracy")
    monkeypatch.setattr(loop, "evaluate", lambda _, step: best.judge(step, {"eval_accuracy": -abs(step - 6)}))
    assert loop.train(steps.run, step=4) == 8
    assert [step for name, step in steps.did if name == "save"] == [5, 6, 8]
    steps.journal.totals.evaluated_step = 8
    steps.did.clear()
    assert loop.train(steps.run, step=8) == 8, "a resume of a run that ended early adds no step"
    assert [name for name, _ in steps.did] == ["push"]


@pytest.mark.parametrize(("has_updates", "afterwards"), [(False, [("save", 5)]), (True, [("finish", 6), ("save", 6)])])
def test_a_batch_of_which_no_update_can_be_made_ends_the_run_with_every_step_saved(
    monkeypatch: pytest.MonkeyPatch, has_updates: bool, afterwards: list[tuple[str, int]]
):
    """Without any of its updates the step is not made: a resume samples its batch again."""
    steps = Steps(monkeypatch, "none", None)
    steps.journal.has_updates = has_updates

    def fail(*_: object, version: int) -> None:
        if version == 6:
            raise UpdateError("algorithm.loss own.py:loss raised ValueError")

    monkeypatch.setattr(loop, "optimize", fail)
    with pytest.raises(UpdateError, match="raised ValueError"):
        loop.train(steps.run, step=4)
    assert steps.last(1 + len(afterwards)) == [("sample", 6), *afterwards]


def test_a_step_that_was_to_be_evaluated_is_when_the_run_goes_on(monkeypatch: pytest.MonkeyPatch):
    """A stop came in the middle of its evaluation."""
    steps = Steps(monkeypatch, "none", None)
    loop.train(steps.run, step=6)
    assert steps.did[:4] == [("push", 6), ("eval", 6), ("complete", 6), ("sample", 7)]


def test_the_last_step_is_evaluated_also_when_a_callback_has_chosen_it(monkeypatch: pytest.MonkeyPatch):
    def stop(step: int, metrics: Any) -> None:
        if step == 5:
            raise StopRun("enough")

    steps = Steps(monkeypatch, "none", None)
    steps.call(stop)
    assert loop.train(steps.run, step=4) == 5
    assert steps.last(4) == [("finish", 5), ("eval", 5), ("complete", 5), ("save", 5)]


def test_a_late_evaluation_that_no_server_makes_loses_no_step(monkeypatch: pytest.MonkeyPatch):
    def stop(step: int, metrics: Any) -> None:
        if step == 5:
            raise StopRun("enough")

    steps = Steps(monkeypatch, "none", None)
    steps.call(stop)

    def fail(*_: object) -> None:
        raise ServersError("nobody answers")

    monkeypatch.setattr(loop, "evaluate", fail)
    with pytest.raises(ServersError, match="nobody answers"):
        loop.train(steps.run, step=4)
    assert steps.last(2) == [("finish", 5), ("save", 5)]
    assert steps.completed[-1]


def test_a_policy_that_cannot_be_trusted_is_not_saved(monkeypatch: pytest.MonkeyPatch):
    steps = Steps(monkeypatch, "eval", RunError("it serves another policy"))
    with pytest.raises(RunError, match="another policy"):
        loop.train(steps.run, step=4)
    assert not [name for name, _ in steps.did if name == "save"]


@pytest.mark.parametrize(("kind", "start"), [("lora", None), ("lora", "folder"), ("full", None)])
@pytest.mark.parametrize("step", [0, 4])
def test_the_first_adapter_that_is_not_zero_is_checked_whatever_the_interval(
    monkeypatch: pytest.MonkeyPatch, kind: str, start: str | None, step: int
):
    steps = Steps(monkeypatch, "sample", None)
    monkeypatch.setattr(loop, "check_canary", lambda _, version: steps.did.append(("canary", version - 1)))
    monkeypatch.setattr(loop, "optimize", lambda *_, version: version != 1)  # step 1 is the first of a warm-up
    steps.run.export = SimpleNamespace(kind=kind)
    steps.run.config.model = SimpleNamespace(lora=SimpleNamespace(adapter=start))
    loop.train(steps.run, step=step)
    checked = [done for name, done in steps.did if name == "canary"]
    assert checked == ([0, 2] if (kind, start, step) == ("lora", None, 0) else [step])


@pytest.mark.parametrize(
    ("in_flight", "kind", "waits"), [("wait", "full", 1), ("wait", "lora", 0), ("keep", "full", 0)]
)
def test_only_a_push_of_all_weights_waits_for_what_is_sampled(
    monkeypatch: pytest.MonkeyPatch, in_flight: Literal["wait", "keep"], kind: str, waits: int
):
    steps = Steps(monkeypatch, "sample", None)
    steps.run.config.weights = WeightsConfig(in_flight=in_flight)
    steps.run.config.model = SimpleNamespace(lora=None)
    steps.run.export = SimpleNamespace(kind=kind)
    steps.journal.stage = lambda name: nullcontext(steps.did.append((name, 0)))
    steps.run.orchestrator = SimpleNamespace(settle=lambda: steps.did.append(("settle", 0)))
    loop.train(steps.run, step=4)
    assert steps.did[:2] == [("push", 4), ("sample", 5)], "nothing is sampled yet at the first push"
    assert steps.did[2 : 3 + 2 * waits] == [("wait", 0), ("settle", 0)] * waits + [("push", 5)]


def test_a_batch_that_is_given_up_ends_without_a_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """All servers are lost, the push fails, and so does, later, what waited for samples."""

    pushing, failed = threading.Event(), threading.Event()

    async def next_batch() -> None:
        await asyncio.to_thread(pushing.wait, 20.0)
        failed.set()
        raise RunError("no rollout server could sample within 300 s")

    async def event() -> asyncio.Event:
        return asyncio.Event()

    def push(*_: object, **__: object) -> None:
        pushing.set()
        assert failed.wait(20.0)
        raise ServersError("could not be pushed")

    monkeypatch.setattr(loop, "push_policy", push)
    with EventLoopThread() as events, caplog.at_level(logging.ERROR, "asyncio"):
        orchestrator = object.__new__(Orchestrator)
        orchestrator.loop, orchestrator.stop = events, StopSignal()
        orchestrator.fleet = SimpleNamespace(needs_push=events.run(event()))  # type: ignore[assignment]
        orchestrator.pusher = SimpleNamespace(lease=SimpleNamespace(taken_over=None))  # type: ignore[assignment]
        events.loop.call_soon_threadsafe(orchestrator.fleet.needs_push.set)
        run: Any = SimpleNamespace(orchestrator=orchestrator)
        with pytest.raises(ServersError, match="could not be pushed"):
            loop.wait_for(run, next_batch(), version=3)
        events.run(asyncio.sleep(0))  # the task has ended by now
        gc.collect()
    assert caplog.records == []
