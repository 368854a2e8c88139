"""Rollback: which checkpoint is gone back to, what is abandoned, and that nothing of it is trained on."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.test_pipeline import FakeReward, FakeRollout, make

from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.checkpoint.files import (
    begin_checkpoint,
    checkpoint_folder,
    describe_files,
    finish_checkpoint,
    list_files,
    list_steps,
)
from grpo_trainer.checkpoint.rollbacks import (
    ROLLBACKS_FILE,
    Rollback,
    read_rollbacks,
    record_rollback,
    remove_abandoned,
    seen_rollbacks,
    with_prompts_moved_on,
)
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.difficulty import DifficultyMemory
from grpo_trainer.errors import GuardStop, UsageError
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.guarding import obey_guards, to_go_back_to
from grpo_trainer.observe.decisions import Decision
from grpo_trainer.orchestrator import Orchestrator
from grpo_trainer.sampling.pipeline import Cursor
from grpo_trainer.sampling.sampler import Asked

CURSOR = {"next_position": 8, "unused": [6, 7], "difficulty": [[0, 0.5, 0]]}


def save(config: RunConfig, step: int, *, keep: int = 10, best: int | None = None) -> Path:
    run_dir = config.run_dir
    folder = begin_checkpoint(run_dir, step)
    (folder / "weights.bin").write_bytes(bytes([step]) * 100)
    state = {"step": step, "cursor": CURSOR, **seen_rollbacks(run_dir)} | ({"best": {"step": best}} if best else {})
    files, spared = describe_files(folder, list_files(folder)), {best} | to_go_back_to(config, step)
    return finish_checkpoint(run_dir, step, state, files, keep=keep, spared=spared)


def configured(tmp_path: Path, **guards: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_dir": str(tmp_path / "run"),
            "model": {"name_or_path": "any"},
            "data": {"dataset": "any", "difficulty": {}},
            "reward": {"reward_funcs": ["right"]},
            "rollout": {"num_generations": 2, "generation_batch_size": 8, "prompts_per_request": 2},
            "algorithm": {"max_staleness": 1, "dynamic_sampling": True},
            "guards": {"steps": 3, "kl": "rollback"} | guards,
        }
    )


class Judge:
    """A journal whose rule `kl` is broken in every step."""

    def __init__(self, action: str = "rollback"):
        self.action = action
        self.written: list[Decision] = []

    def judge(self) -> list[Decision]:
        return [Decision("entropy", "warn", "it falls"), Decision("kl", self.action, "it is large")]

    def decided(self, step: int, decisions: list[Decision]) -> None:
        self.written += decisions

    def stage(self, name: str) -> nullcontext[None]:
        return nullcontext()


def test_the_way_back_is_the_newest_whole_checkpoint_from_before_the_window(tmp_path: Path):
    config, journal = configured(tmp_path), Judge()
    for step in (2, 4, 6, 7):
        save(config, step)
    found = obey_guards(config, journal, 9)  # type: ignore[arg-type]
    assert found is not None
    assert (found.from_step, found.state["step"]) == (9, 6), "steps 7 to 9 are the window"
    (found.folder / "weights.bin").write_bytes(b"damaged")
    found = obey_guards(config, journal, 9)  # type: ignore[arg-type]
    assert found is not None
    assert found.state["step"] == 4
    assert obey_guards(config, Judge("warn"), 9) is None  # type: ignore[arg-type]


def test_a_run_without_a_good_checkpoint_stops_and_names_save_steps(tmp_path: Path):
    config, journal = configured(tmp_path), Judge()
    save(config, 7)
    with pytest.raises(GuardStop, match=r"from before step 7, and there is none \(checkpoint.save_steps 100\)") as stop:
        obey_guards(config, journal, 9)  # type: ignore[arg-type]
    assert "checkpoint.save_steps" in str(stop.value.hint)
    assert [(decision.rule, decision.action) for decision in journal.written] == [("entropy", "warn"), ("kl", "stop")]


def test_a_run_goes_back_max_rollbacks_times(tmp_path: Path):
    config = configured(tmp_path, max_rollbacks=1)
    save(config, 1)
    assert obey_guards(config, Judge(), 4) is not None  # type: ignore[arg-type]
    record_rollback(config.run_dir, Rollback("kl", 4, 1, 32))
    with pytest.raises(GuardStop, match=r"gone back once, and guards\.max_rollbacks allows no more"):
        obey_guards(config, Judge(), 4)  # type: ignore[arg-type]
    save(config, 3)
    with pytest.raises(GuardStop) as stop:
        obey_guards(config, Judge(), 4)  # type: ignore[arg-type]
    folder = config.run_dir / "checkpoints"
    assert str(stop.value.hint).endswith(
        f"to go on from before that, move the checkpoints after step 1 out of {folder} first"
    )
    for acts in ("rollback", "stop"):
        ends = configured(tmp_path, kl=acts)
        assert 1 in to_go_back_to(ends, 4, stops=True), "the run can go on from there"


def test_the_checkpoint_to_go_back_to_is_kept_beside_the_newest(tmp_path: Path):
    config = configured(tmp_path)
    for step, kept in enumerate(([1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]), start=1):
        save(config, step, keep=1)
        assert list_steps(config.run_dir) == kept, "one is from before a window that ends with the next step"
    config = configured(tmp_path / "longer", steps=9)
    for step in range(1, 40):
        save(config, step, keep=1)
        assert len(list_steps(config.run_dir)) <= 3
        assert step < 10 or 0 < list_steps(config.run_dir)[0] <= step + 1 - 9
    only_warns = configured(tmp_path, kl="warn")
    save(only_warns, 6, keep=1)
    assert list_steps(only_warns.run_dir) == [6]


def test_the_best_checkpoint_from_before_a_rollback_is_still_there(tmp_path: Path):
    config = configured(tmp_path)
    for step, best in enumerate((1, 1, 1, 4, 4), start=1):
        save(config, step, keep=1, best=best)
    assert list_steps(config.run_dir) == [1, 3, 4, 5], "3 is gone back to, and its best is 1"
    record_rollback(config.run_dir, Rollback("kl", 6, 3, 40))
    assert list_steps(config.run_dir) == [1, 3]


def test_checkpoints_of_abandoned_steps_are_gone_and_later_ones_stay_also_after_a_kill(tmp_path: Path):
    config = configured(tmp_path)
    for step in (2, 4, 6):
        save(config, step)
    abandoned = checkpoint_folder(config.run_dir, 4).rename(tmp_path / "abandoned")
    record_rollback(config.run_dir, Rollback("kl", 7, 2, 40))
    assert list_steps(config.run_dir) == [2]
    abandoned.rename(checkpoint_folder(config.run_dir, 4))  # as if the kill had come before it was removed
    save(config, 6)
    remove_abandoned(config.run_dir)
    assert list_steps(config.run_dir) == [2, 6]
    state = json.loads((checkpoint_folder(config.run_dir, 6) / "state.json").read_text())
    assert with_prompts_moved_on(state, config.run_dir) == state == {"step": 6, "cursor": CURSOR, "rollbacks": 1}


def test_an_older_checkpoint_goes_on_after_the_prompts_that_were_drawn(tmp_path: Path):
    state = {"step": 2, "cursor": CURSOR}
    assert with_prompts_moved_on(state, tmp_path) is state
    (tmp_path / "checkpoints").mkdir()
    record_rollback(tmp_path, Rollback("kl", 7, 2, 40))
    record_rollback(tmp_path, Rollback("kl", 5, 2, 60))
    moved = {"next_position": 60, "unused": [], "difficulty": [[0, 0.5, 0]]}
    assert with_prompts_moved_on(state, tmp_path) == {"step": 2, "cursor": moved}
    assert with_prompts_moved_on(state | {"rollbacks": 1}, tmp_path)["cursor"] == moved
    assert with_prompts_moved_on(state | {"rollbacks": 2}, tmp_path)["cursor"] == CURSOR


@pytest.mark.parametrize("content", ["[", '[{"rule": "kl"}]', "3"])
def test_a_file_that_was_edited_is_refused_by_name(tmp_path: Path, content: str):
    (tmp_path / ROLLBACKS_FILE).write_text(content)
    with pytest.raises(UsageError, match=r"rollbacks\.json cannot be read"):
        read_rollbacks(tmp_path)


class Spread(FakeReward):
    """Every second group has equal rewards, and is replaced."""

    async def score(self, groups: list[Group], *, step: int) -> None:
        for group in groups:
            for index, episode in enumerate(group.episodes):
                episode.total = float(index * (group.position % 2))


class HoldingRollout(FakeRollout):
    """From some job on, the samples do not come."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs_until_hold = 1000

    async def sample(self, asked: Sequence[Asked], **options: Any) -> list[Group]:
        self.jobs_until_hold -= 1
        if self.jobs_until_hold < 0:
            self.hold.clear()
        return await super().sample(asked, **options)


def test_nothing_that_the_abandoned_policy_has_sampled_or_replaced_comes_into_a_batch(tmp_path: Path):
    left: list[None] = []
    with EventLoopThread() as events:
        orchestrator, rollout = orchestrator_of(configured(tmp_path), events, left)
        pipeline = orchestrator.pipeline

        def next_positions() -> list[int]:
            batch = events.run(orchestrator.pipeline.next_batch())
            return [group.position for group in [*batch.groups, *batch.replaced]]

        orchestrator.policy_pushed(1)
        next_positions()
        orchestrator.batch_used()
        wait_until(lambda: not pipeline._out)
        rollout.jobs_until_hold = 1
        orchestrator.policy_pushed(2)  # four more groups in two jobs
        wait_until(lambda: bool(pipeline._finished and pipeline.refills.replaced and pipeline._out))

        next_position = orchestrator.abandon()
        assert next_position > max(one.position for job in rollout.jobs for one in job)
        assert left == [None], "the weight session is closed"
        rollout.hold.set()
        rollout.jobs_until_hold = 1000
        cursor = Cursor(next_position, [], [(0, 0.5, 0)])
        orchestrator.start_over(cursor)
        assert orchestrator.cursor() == cursor, "the difficulty is that of the checkpoint"
        memory = orchestrator.pipeline.prompts.difficulty
        assert memory is not None
        memory.learn(1, epoch=0, solved=1.0, teaches=False)
        assert not memory.rests_until, "no prompt rests in this run, before or after"
        orchestrator.policy_pushed(2)
        assert min(next_positions()) == next_position
        assert orchestrator.pipeline.counts.dropped_stale == 0


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def orchestrator_of(
    config: RunConfig, events: EventLoopThread, left: list[None]
) -> tuple[Orchestrator, HoldingRollout]:
    """Rank 0's orchestrator around a pipeline of stages that are made here."""
    orchestrator: Any = object.__new__(Orchestrator)
    rollout = HoldingRollout()
    pipeline = make(rollout, max_staleness=1)
    orchestrator.config, orchestrator.loop, orchestrator.tracing = config, events, pipeline.tracing
    orchestrator.sampler, orchestrator.reward, orchestrator._limits = rollout, Spread(), pipeline.limits
    orchestrator.teachers = None
    orchestrator.pusher = SimpleNamespace(leave=lambda: left.append(None))
    pipeline.prompts.difficulty = DifficultyMemory.of(config.data.difficulty, seed=config.seed, rests=False)
    orchestrator.pipeline = orchestrator._new_pipeline(pipeline.prompts, Cursor())
    return orchestrator, rollout
