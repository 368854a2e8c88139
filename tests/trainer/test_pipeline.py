"""The pipeline: staleness bound, carry-over, accounting, and that a failure ends the wait."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.otlp_receiver import otlp_receiver
from tests.trainer.made_episodes import completion
from tests.waiting import PATIENCE_S

from grpo_proto import RewardScore, Sampling
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.data.order import PromptOrder, sampling_seed
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.orchestrator import settled
from grpo_trainer.sampling.pipeline import Cursor, Pipeline, PipelineLimits
from grpo_trainer.sampling.sampler import Asked
from grpo_trainer.sampling.tracing import Tracing


class FakeRollout:
    """Samples with the version the job asks for; `hold` keeps jobs waiting, `max_out` records groups in flight."""

    def __init__(self) -> None:
        self.jobs: list[Sequence[Asked]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.failure: Exception | None = None

    async def sample(self, asked: Sequence[Asked], *, min_version: int, n: int, sampling: Sampling) -> list[Group]:
        self.jobs.append(asked)
        await self.hold.wait()
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        versions = [(min_version, 1)]
        return [
            Group(
                one.position,
                one.row,
                [completion(f"{one.position}-{k}", [1], [-0.5], "x", "stop", versions) for k in range(n)],
                one.trace,
            )
            for one in asked
        ]


class FakeReward:
    async def score(self, groups: list[Group], *, step: int) -> None:
        await asyncio.sleep(0)
        for group in groups:
            for sample in group.episodes:
                sample.total, sample.rewards = 1.0, {"right": RewardScore(score=1.0, status="ok")}


def make(
    rollout: FakeRollout, *, max_staleness: int = 0, cursor: Cursor | None = None, tracing: Tracing | None = None
) -> Pipeline:
    prompts = PromptOrder([PromptRow(number, [number + 1], "p", {}) for number in range(5)], seed=1, shuffle=True)
    limits = PipelineLimits(
        groups_per_batch=4,
        max_staleness=max_staleness,
        groups_per_job=2,
        num_generations=2,
        min_scored_share=0.5,
        max_steps=11,
    )
    return Pipeline(
        rollout, FakeReward(), prompts, Sampling(), limits, cursor or Cursor(), tracing or Tracing(None, run="")
    )  # type: ignore[arg-type]


def positions(groups: list[Group]) -> list[int]:
    return [group.position for group in groups]


def oldest_versions(groups: list[Group]) -> list[int]:
    return [min(sample.oldest_version or 0 for sample in group.episodes) for group in groups]


async def test_synchronous_batches_are_sampled_by_the_current_version_only_when_asked_for():
    rollout = FakeRollout()
    pipeline = make(rollout)
    for version in (1, 2, 3):
        await pipeline.policy_updated(version)
        jobs_before = len(rollout.jobs)
        await asyncio.sleep(0.01)
        assert len(rollout.jobs) == jobs_before
        batch = await pipeline.next_batch()
        assert positions(batch.groups) == list(range(4 * (version - 1), 4 * version))
        assert oldest_versions(batch.groups) == [version] * 4
    assert pipeline.cursor() == Cursor(12, [8, 9, 10, 11])
    pipeline.batch_used()
    assert pipeline.cursor() == Cursor(12, [])
    assert {one.seed for asked in rollout.jobs for one in asked} == {
        sampling_seed(1, position) for position in range(12)
    }


@pytest.mark.parametrize("max_staleness", [1, 2])
async def test_groups_out_never_exceed_the_bound_and_sampling_goes_on_meanwhile(max_staleness: int):
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=max_staleness)
    await pipeline.policy_updated(1)
    await asyncio.sleep(0.01)
    assert pipeline.counts.issued == (max_staleness + 1) * 4
    used: list[int] = []
    for version in range(2, 9):
        batch = await pipeline.next_batch()
        used += positions(batch.groups)
        assert batch.epoch == len(used) / 5, "of the prompts that were used, whatever is sampled ahead of them"
        assert min(oldest_versions(batch.groups)) >= version - 1 - max_staleness
        await pipeline.policy_updated(version)
        await asyncio.sleep(0.01)
        out = pipeline.counts.issued - pipeline.counts.used - pipeline.counts.dropped_stale
        assert out <= (max_staleness + 1) * 4
    assert len(used) == len(set(used))


class FakeTeacher:
    """Holds its answer until the rewards are there, which it would wait for in vain if they waited for it."""

    def __init__(self) -> None:
        self.rewarded = asyncio.Event()
        self.failure: Exception | None = None

    async def score(self, groups: list[Group]) -> None:
        await self.rewarded.wait()
        if self.failure:
            raise self.failure
        for group in groups:
            group.taught_at_s = time.monotonic()


class RewardBefore(FakeReward):
    def __init__(self, teacher: FakeTeacher) -> None:
        self.teacher = teacher

    async def score(self, groups: list[Group], *, step: int) -> None:
        await super().score(groups, step=step)
        self.teacher.rewarded.set()


async def test_a_batch_waits_for_rewards_and_a_teacher_at_the_same_time():
    pipeline, teacher = make(FakeRollout()), FakeTeacher()
    pipeline.reward, pipeline.teachers = RewardBefore(teacher), teacher  # type: ignore[assignment]
    await pipeline.policy_updated(1)
    batch = await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)
    assert all(group.taught_at_s > 0 for group in batch.groups)
    assert batch.teacher_s > 0
    teacher.failure = RunError("the teacher is gone")
    await pipeline.policy_updated(2)
    with pytest.raises(RunError, match="the teacher is gone"):
        await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)


async def test_a_group_that_became_too_old_is_dropped_and_counted():
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    await asyncio.sleep(0.01)
    await pipeline.policy_updated(3)
    batch = await pipeline.next_batch()
    assert pipeline.counts.dropped_stale == 8
    assert min(oldest_versions(batch.groups)) >= 2


@pytest.mark.parametrize("trained", [True, False])
async def test_what_is_out_at_a_checkpoint_is_sampled_again_after_a_resume(trained: bool):
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    batch = await pipeline.next_batch()
    rollout.hold.clear()
    if trained:
        pipeline.batch_used()
    cursor = pipeline.cursor()
    await pipeline.stop()
    if not trained:  # a stop came between sampling and training
        assert cursor.unused[:4] == positions(batch.groups)
        return
    assert sorted([*positions(batch.groups), *cursor.unused]) == list(range(cursor.next_position))

    resumed = make(FakeRollout(), max_staleness=1, cursor=cursor)
    await resumed.policy_updated(2)
    again = await resumed.next_batch()
    assert positions(again.groups) == cursor.unused[:4]


async def test_a_failing_job_ends_the_wait_for_a_batch():
    rollout = FakeRollout()
    rollout.failure = RuntimeError("no server left")
    with otlp_receiver() as receiver:
        tracing = Tracing(receiver.url, run="r")
        pipeline = make(rollout, tracing=tracing)
        await pipeline.policy_updated(1)
        with pytest.raises(RuntimeError, match="no server left"):
            await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)
        await pipeline.stop()
        tracing.close()
    assert {span.error for span in receiver.spans if span.name == "group"} == {"RuntimeError"}


async def test_what_no_server_samples_while_the_trainer_trains_is_sampled_after_the_next_push(
    caplog: pytest.LogCaptureFixture,
):
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    await pipeline.next_batch()
    rollout.failure = RunError("no rollout server could sample within 300 s")  # it restarted, and wants a push
    await asyncio.sleep(0.01)
    pipeline.batch_used()
    rollout.failure = None
    await pipeline.policy_updated(2)
    assert positions((await pipeline.next_batch()).groups) == [4, 5, 6, 7]
    assert pipeline.counts.used == 8
    await asyncio.sleep(0.01)
    assert pipeline.counts.issued == 8 + 4


async def test_what_no_server_samples_while_the_trainer_evaluates_or_saves_is_sampled_when_it_is_wanted():
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    await pipeline.next_batch()
    pipeline.batch_used()
    await asyncio.sleep(0.01)
    rollout.failure = RunError("no rollout server could sample within 300 s")
    await pipeline.policy_updated(2)  # then it saves, for longer than that
    await asyncio.sleep(0.01)
    rollout.failure = None
    assert positions((await pipeline.next_batch()).groups) == [4, 5, 6, 7]


async def test_a_policy_that_is_pushed_again_while_a_batch_is_taken_makes_no_room():
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    await pipeline.next_batch()
    await pipeline.policy_updated(1)  # all servers had lost it
    await asyncio.sleep(0.01)
    assert pipeline.counts.issued == 8
    await pipeline.policy_updated(2)
    await asyncio.sleep(0.01)
    assert pipeline.counts.issued == 12


@pytest.mark.parametrize("end", ["sampled", "failed", "no server"])
async def test_a_push_that_waits_for_what_is_sampled_waits_for_nothing_else(end: str):
    rollout = FakeRollout()
    rollout.hold.clear()
    pipeline = make(rollout, max_staleness=1)
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    await fleet.admit(fleet.replicas, session=1)
    await pipeline.policy_updated(1)
    settling = asyncio.create_task(settled(pipeline, fleet))
    await asyncio.sleep(0.01)
    assert not settling.done()
    if end == "no server":
        await fleet.expel(fleet.replicas[0], "test")
    else:
        rollout.failure = RuntimeError("a mistake") if end == "failed" else None
        rollout.hold.set()
    await asyncio.wait_for(settling, PATIENCE_S)
    await pipeline.stop()
    await fleet.close()


@pytest.mark.parametrize("max_staleness", [1, 2])
async def test_a_sampler_that_is_faster_than_training_samples_nothing_in_vain(max_staleness: int):
    pipeline = make(FakeRollout(), max_staleness=max_staleness)
    ages = []
    for version in range(1, 12):
        await pipeline.policy_updated(version)
        batch = await pipeline.next_batch()
        ages.append(version - min(oldest_versions(batch.groups)))
        await asyncio.sleep(0.01)  # training, while everything that was dispatched is sampled
    assert pipeline.counts.dropped_stale == 0
    assert max(ages) == max_staleness
    await pipeline.policy_updated(12)  # after the last step
    await asyncio.sleep(0.01)
    assert pipeline.counts.issued == pipeline.counts.used == 11 * 4


async def test_groups_of_which_too_few_are_scored_are_not_used_up():
    class Reward(FakeReward):
        async def score(self, groups: list[Group], *, step: int) -> None:
            await super().score(groups, step=step)
            if step == 2:
                for sample in [group.episodes[0] for group in groups] + groups[0].episodes:
                    sample.total = None

    pipeline = make(FakeRollout())
    pipeline.reward = Reward()  # type: ignore[assignment]
    await pipeline.policy_updated(1)
    await pipeline.next_batch()
    pipeline.batch_used()
    await pipeline.policy_updated(2)
    with pytest.raises(RunError, match="only 2 of 8 samples could be scored"):
        await pipeline.next_batch()
    assert (pipeline.counts.used, pipeline.cursor()) == (4, Cursor(8, [4, 5, 6, 7]))


async def test_every_trace_ends_and_says_how():
    rollout = FakeRollout()
    with otlp_receiver() as receiver:
        tracing = Tracing(receiver.url, run="a-run")
        pipeline = make(rollout, max_staleness=1, tracing=tracing)
        await pipeline.policy_updated(1)
        batch = await pipeline.next_batch()  # 0 to 3; 4 to 7 are carried over
        for group in batch.groups:
            group.trace.end("trained", step=1)
        await asyncio.sleep(0.01)
        rollout.hold.clear()
        await pipeline.policy_updated(4)  # what was sampled by version 1 is too old by now
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(pipeline.next_batch())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await pipeline.stop()
        tracing.close()
    outcomes: dict[str, list[int]] = {}
    for span in receiver.spans:
        if span.name == "group":
            outcomes.setdefault(str(span.attributes["grpo.outcome"]), []).append(
                int(str(span.attributes["grpo.group"]))
            )
    assert sorted(position for found in outcomes.values() for position in found) == list(range(pipeline.counts.issued))
    assert sorted(outcomes["trained"]) == [0, 1, 2, 3]
    assert outcomes["stale"]
    assert set(outcomes) <= {"trained", "stale", "unused", "CancelledError"}
    assert not any(span.error for span in receiver.spans)
    assert len(outcomes) > 2


async def test_rewards_hear_the_step_and_a_batch_that_is_not_finished_has_a_whole_trace():
    steps: dict[int, int] = {}

    class Reward(FakeReward):
        async def score(self, groups: list[Group], *, step: int) -> None:
            steps.update((group.position, step) for group in groups)
            await super().score(groups, step=step)

    with otlp_receiver() as receiver:
        tracing = Tracing(receiver.url, run="r")
        for staleness in (0, 1):
            pipeline = make(FakeRollout(), max_staleness=staleness, tracing=tracing)
            pipeline.reward = Reward()  # type: ignore[assignment]
            for version in (1, 2, 3):
                await pipeline.policy_updated(version)
                batch = await pipeline.next_batch()
                assert {steps[position] for position in positions(batch.groups)} == {version}
            pipeline.batch_used()  # and the canary ends the run: nobody else ends these traces
            await pipeline.stop()
        tracing.close()
    assert {span.attributes["grpo.outcome"] for span in receiver.spans if span.name == "group"} >= {"trained"}
    roots = {span.span_id for span in receiver.spans if span.name == "group"}
    assert {span.parent_id for span in receiver.spans if span.name == "train"} <= roots
    assert sum(span.name == "train" for span in receiver.spans) == 8


async def test_short_groups_do_not_overtake_long_ones_until_those_are_stale():
    """With staleness 1: a group that is late for one batch is waited for in the next."""
    rollout = FakeRollout()
    pipeline = make(rollout, max_staleness=1)
    late, sample = asyncio.Event(), rollout.sample

    async def sample_late(asked: Sequence[Asked], **options: Any) -> list[Group]:
        groups = await sample(asked, **options)
        if asked[0].position == 0:
            await late.wait()
        return groups

    rollout.sample = sample_late  # type: ignore[method-assign]
    await pipeline.policy_updated(1)
    assert positions((await pipeline.next_batch()).groups) == [2, 3, 4, 5]
    await pipeline.policy_updated(2)
    batch = asyncio.create_task(pipeline.next_batch())
    await asyncio.sleep(0.05)
    assert not batch.done(), "groups of version 2 are finished, and those of version 1 would be stale next"
    late.set()
    assert positions((await batch).groups) == [0, 1, 6, 7]
    assert pipeline.counts.dropped_stale == 0
    await pipeline.stop()
