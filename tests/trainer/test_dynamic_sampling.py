"""Dynamic sampling: which groups are replaced, by which prompts, within which bound, and what is counted."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.trainer.made_episodes import completion
from tests.trainer.test_pipeline import FakeRollout, make, oldest_versions, positions
from tests.waiting import PATIENCE_S

from grpo_proto import RewardScore
from grpo_trainer.algorithm.estimators import ESTIMATORS
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.algorithm.spread import has_spread, teaches
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.observe.dynamic_sampling import dynamic_sampling_metrics
from grpo_trainer.sampling.pipeline import Cursor, Pipeline
from grpo_trainer.sampling.refills import Refills


@dataclass
class Reward:
    """Scores differ within the groups of the positions in `good`; `unscored` samples of a group have no score."""

    good: Sequence[int]
    unscored: int = 0

    async def score(self, groups: list[Group], *, step: int) -> None:
        for group in groups:
            for k, episode in enumerate(group.episodes):
                episode.total = None if k < self.unscored else float(k if group.position in self.good else 1)
                status = "error" if episode.total is None else "ok"
                episode.rewards = {"right": RewardScore(score=episode.total, status=status)}


def dynamic(
    good: Sequence[int], *, rollout: FakeRollout | None = None, max_groups: int = 12, unscored: int = 0, **options: Any
) -> Pipeline:
    pipeline = make(rollout or FakeRollout(), **options)
    pipeline.reward, pipeline.refills = Reward(good, unscored), Refills(teaches, max_groups)  # type: ignore[assignment]
    return pipeline


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.1, 0.1, 0.1], False),
        ([0.0, 1.0], True),
        ([1.0, None], False),
        ([None, None], False),
        ([0.3, None, 0.2], True),
    ],
)
def test_what_has_spread(rewards: list[float | None], expected: bool):
    assert has_spread(rewards) is expected


@pytest.mark.parametrize("seed", range(4))
async def test_a_synchronous_batch_is_the_first_groups_that_teach_in_any_order_of_arrival(seed: int):
    rollout, rng = FakeRollout(), random.Random(seed)
    sample = rollout.sample

    async def sample_when_it_likes(asked: Any, **options: Any) -> list[Group]:
        groups = await sample(asked, **options)
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        return groups

    rollout.sample = sample_when_it_likes  # type: ignore[method-assign]
    pipeline = dynamic([1, 4, 5, 8, 9, 10, 12, 14], rollout=rollout)
    await pipeline.policy_updated(1)
    batch = await pipeline.next_batch()
    assert positions(batch.groups) == [1, 4, 5, 8]
    assert sorted(positions(batch.replaced)) == [0, 2, 3, 6, 7]
    assert pipeline.counts.issued == 9, "exactly the missing groups were asked for"
    assert batch.epoch == 9 / 5
    # A stop before the batch is trained on: all of it is sampled again. Afterwards none of it.
    assert pipeline.cursor() == Cursor(9, list(range(9)))
    pipeline.batch_used()
    assert pipeline.cursor() == Cursor(9, [])
    await pipeline.policy_updated(2)
    assert positions((await pipeline.next_batch()).groups) == [9, 10, 12, 14]
    assert (pipeline.counts.used, pipeline.counts.replaced) == (8, 7)


@pytest.mark.parametrize("stopped_after", [0, 3, 6, 9])
async def test_a_run_that_was_stopped_amid_its_refills_goes_on_as_if_it_had_not(stopped_after: int):
    """Also when the stop came while the batch was sampled."""
    good = [2, 7, 8, 11, 13]
    whole = dynamic(good)
    await whole.policy_updated(1)
    expected = await whole.next_batch()

    first = dynamic(good)
    await first.policy_updated(1)
    waiting = asyncio.create_task(first.next_batch())
    for _ in range(stopped_after):
        await asyncio.sleep(0)
    cursor = first.cursor()
    waiting.cancel()
    await first.stop()
    assert cursor.unused == list(range(cursor.next_position))

    resumed = dynamic(good, cursor=cursor)
    await resumed.policy_updated(1)
    batch = await resumed.next_batch()
    assert positions(batch.groups) == positions(expected.groups) == [2, 7, 8, 11]
    whole.batch_used(), resumed.batch_used()
    assert resumed.cursor() == whole.cursor() == Cursor(12, [])


@pytest.mark.parametrize(("good", "expected"), [([], [0, 1, 2, 3]), ([3, 9], [0, 1, 3, 9])])
@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_without_spread_anywhere_the_refills_end_and_say_so(
    good: list[int], expected: list[int], max_staleness: int, caplog: pytest.LogCaptureFixture
):
    """What teaches is kept, and the batch is filled with the first prompts that do not."""
    pipeline = dynamic(good, max_groups=8, max_staleness=max_staleness)
    await pipeline.policy_updated(1)
    batch = await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)
    assert positions(batch.groups) == expected
    assert len(batch.groups) + len(batch.replaced) <= pipeline.limits.max_groups_out(1, training=False) + 8
    if max_staleness == 0:
        assert sorted(positions([*batch.groups, *batch.replaced])) == list(range(12))
    assert f"{4 - len(good)} of 4 groups have equal rewards" in caplog.text
    await pipeline.stop()


async def test_a_push_that_waits_for_what_is_sampled_is_not_overtaken_by_replacements():
    rollout = FakeRollout()
    pipeline = dynamic([], rollout=rollout, max_staleness=1)
    await pipeline.policy_updated(1)
    await pipeline.next_batch()
    rollout.hold.clear()
    await asyncio.sleep(0.01)  # what replaces other groups is asked for, and held
    settling = asyncio.create_task(pipeline.settle())
    await asyncio.sleep(0.01)
    assert not settling.done()
    rollout.hold.set()
    await asyncio.wait_for(settling, PATIENCE_S)
    asked = len(rollout.jobs)
    await asyncio.sleep(0.01)  # their scores have come: nothing teaches, and the next prompts are due
    assert len(rollout.jobs) == asked
    await pipeline.policy_updated(2)
    await asyncio.sleep(0.01)
    assert len(rollout.jobs) > asked
    await pipeline.stop()


async def test_overlapped_refills_stay_inside_the_bound_and_throw_nothing_away_that_teaches():
    good = range(0, 400, 3)
    pipeline = dynamic(good, max_staleness=1)
    used: list[int] = []
    for version in range(1, 9):
        await pipeline.policy_updated(version)
        await asyncio.sleep(0.01)  # it samples ahead, and replaces while the trainer trains
        batch = await pipeline.next_batch()
        await asyncio.sleep(0.01)
        assert all(teaches(group) for group in batch.groups)
        assert min(oldest_versions(batch.groups)) >= version - 1
        out = pipeline.counts.issued - pipeline.counts.used - pipeline.counts.replaced - len(pipeline.refills.replaced)
        assert out <= 4
        used += positions(batch.groups)
        pipeline.batch_used()
    assert pipeline.counts.dropped_stale == 0
    assert sorted(used) == list(good)[: len(used)]
    await pipeline.stop()


async def test_rewards_that_fail_end_the_wait_as_without_refills():
    pipeline = dynamic([], unscored=2)
    await pipeline.policy_updated(1)
    with pytest.raises(RunError, match="only 0 of 32 samples could be scored"):
        await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)
    assert pipeline.cursor() == Cursor(16, list(range(16)))


def test_the_metrics_tell_what_the_batch_would_have_been_without():
    def group(position: int, totals: list[float | None]) -> Group:
        episodes = [completion(f"{position}-{k}", [1], [-0.5], "x", "stop", [(1, 1)]) for k in range(len(totals))]
        for episode, total in zip(episodes, totals, strict=True):
            episode.total = total
        return Group(position, PromptRow(0, [1], "p", {}), episodes)

    metrics = dynamic_sampling_metrics([group(0, [0.0, 1.0]), group(2, [1.0, 0.0])], [group(1, [0.5, None])])
    assert metrics == {
        "dynamic_sampling/replaced_groups": 1,
        "dynamic_sampling/refills": 0.5,
        "dynamic_sampling/frac_reward_zero_std": 0.2,
        "dynamic_sampling/reward": 0.5,
    }


def test_rewards_that_differ_by_rounding_have_no_spread_and_advantages_next_to_0():
    totals = [0.1 + 0.2, 0.3, 0.3]
    assert totals[0] != totals[1]
    assert not has_spread(totals)
    (advantages,) = ESTIMATORS["grpo"](Rewards([totals]), AlgorithmConfig())
    assert 0 < max(abs(advantage or 0.0) for advantage in advantages) < 1e-9
