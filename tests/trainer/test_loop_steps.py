"""A step of the loop by itself: its updates, a batch that makes none, and what its servers did not do."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.made_episodes import completion

from grpo_proto import ErrorDetail, FatalError
from grpo_trainer import loop
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError, ServersError

PARTS = SimpleNamespace(hand_out=lambda *_, **__: ([], [0]), prefixes=None)
"""In place of the ranks' parts of a batch, which is empty here."""


@pytest.mark.parametrize(
    ("num_truncated", "num_failed", "goes_on"), [(16, 0, True), (9, 7, True), (1, 15, False), (0, 16, False)]
)
def test_a_batch_that_is_masked_makes_no_update_and_one_that_is_lost_ends_the_run(
    num_truncated: int, num_failed: int, goes_on: bool, caplog: pytest.LogCaptureFixture
):
    cut = replace(completion("a", [1], [-0.1], "t", "length", [(1, 1)]), advantage=0.5, total=1.0)
    failed = completion("b", [1], [-0.1], "t", "stop", [(1, 1)])
    group = Group(0, PromptRow(0, [1], "p", {}), [cut] * num_truncated + [failed] * num_failed)
    config: Any = SimpleNamespace(
        algorithm=AlgorithmConfig(mask_truncated_completions=True), rollout=SimpleNamespace(max_completion_length=9)
    )
    with nullcontext() if goes_on else pytest.raises(ServersError, match="no sample of the batch can be trained on"):
        loop.check_only_masked([group], config, step=3)
    assert ("step 3 makes no update" in caplog.text) == goes_on


def test_a_policy_changes_by_an_update_with_a_rate_and_a_finite_gradient(monkeypatch: pytest.MonkeyPatch):
    def changed(rate: float, grad_norm: float | None) -> bool:
        """The engine leaves out what is not finite."""
        result = {"learning_rate": rate, "update_skipped": float(grad_norm is None)}
        result |= {} if grad_norm is None else {"grad_norm": grad_norm}
        crew = SimpleNamespace(do=lambda *_, **__: result)
        config = SimpleNamespace(algorithm=AlgorithmConfig())
        orchestrator = SimpleNamespace(batch_used=lambda: None)
        journal = SimpleNamespace(stage=lambda _: nullcontext(), add=lambda _: None, updated=lambda _: None)
        run: Any = SimpleNamespace(
            config=config, crew=crew, orchestrator=orchestrator, journal=journal, parts=PARTS, demonstrations=None
        )
        return loop.optimize(run, [], version=1)

    monkeypatch.setattr(loop, "count_updates", lambda _: 1)
    monkeypatch.setattr(loop, "surveyed", lambda _: {})
    assert changed(1e-5, 0.3)
    assert not any(changed(*numbers) for numbers in ((0.0, 0.3), (1e-5, 0.0), (1e-5, None)))


def test_the_reference_moves_after_the_updates_of_every_so_many_steps(monkeypatch: pytest.MonkeyPatch):
    did: list[tuple[int, str]] = []
    crew = SimpleNamespace()
    algorithm = AlgorithmConfig(beta=0.1, sync_ref_model=True, ref_model_sync_steps=2)
    config = SimpleNamespace(algorithm=algorithm)
    journal = SimpleNamespace(stage=lambda _: nullcontext(), add=lambda _: None, updated=lambda _: None)
    orchestrator = SimpleNamespace(batch_used=lambda: None)
    run: Any = SimpleNamespace(
        config=config, crew=crew, orchestrator=orchestrator, journal=journal, parts=PARTS, demonstrations=None
    )
    monkeypatch.setattr(loop, "count_updates", lambda _: 1)
    for step in range(1, 6):

        def do(command: str, *_: object, step: int = step, **__: object) -> dict[str, float]:
            did.append((step, command))
            return {"learning_rate": 0.0, "grad_norm": 0.0, "update_skipped": 0.0}

        crew.do = do
        loop.optimize(run, [], version=step)
    assert [one for one in did if one[1] == "sync_reference"] == [(2, "sync_reference"), (4, "sync_reference")]
    assert did[did.index((2, "sync_reference")) - 1] == (2, "update")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunError("no rollout server could sample within 9 s", hint="look"), "no rollout server could sample.*(look)"),
        (FatalError(ErrorDetail(type="bug", message="it broke", retryable=False), url="http://r"), "it broke"),
    ],
)
async def test_what_the_servers_did_not_do_is_their_error(error: Exception, message: str):
    async def fail() -> None:
        raise error

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    orchestrator = SimpleNamespace(start=lambda _: task, wait=lambda *_, **__: "done")
    run: Any = SimpleNamespace(orchestrator=orchestrator)
    with pytest.raises(ServersError, match=message):
        loop.wait_for(run, None, version=1)  # type: ignore[arg-type]
