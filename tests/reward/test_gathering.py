"""Small chunks of several requests go together while workers are busy, and each gets back what is its own."""

import asyncio
from typing import ClassVar

import pytest
from tests.reward.gated import GatedExecutor
from tests.waiting import PATIENCE_S

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.costs import CHUNK_S, FIRST_GUESS_S, Costs
from grpo_reward.executors.base import Chunk, InvalidParams
from grpo_reward.executors.gathering import GatheringExecutor
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.executors.turns import TurnsExecutor


def chunk_of(*lengths: int, reward: str = "min_length", **params: object) -> Chunk:
    """`min_length` with this default: 1 when the text has at least 3 characters."""
    samples = [{"completion": "x" * length, "columns": {}} for length in lengths]
    return Chunk([RewardSpec(name=reward, params=params or {"min_chars": 2})], samples, None, 10.0)


def scores_of(chunk: Chunk) -> list[float | None]:
    return [score.score if score else None for score in chunk.scores]


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def gathering() -> tuple[GatheringExecutor, GatedExecutor]:
    inner, costs = GatedExecutor(), Costs()
    inner.gate.clear()
    costs.learn("min_length", 0.0001)
    costs.learn("format", 0.0001)
    return GatheringExecutor(TurnsExecutor(inner, costs), costs), inner


async def test_with_a_free_worker_nothing_waits_and_nothing_is_gathered(gathering):
    executor, inner = gathering
    inner.gate.set()
    for _ in range(3):
        chunk = chunk_of(3, 2)
        await executor.score(chunk)
        assert scores_of(chunk) == [1.0, 0.0]
    assert [len(chunk.samples) for chunk in inner.chunks] == [2, 2, 2]


async def test_what_waits_goes_together_and_comes_back_apart(gathering):
    executor, inner = gathering
    chunks = [chunk_of(3), chunk_of(2, 3), chunk_of(1), chunk_of(3, 3, 2)]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await settled()
    # Since when those that go together have waited: should one of them hang, each goes on alone from its place.
    assert [chunk.since_s is None for chunk in chunks] == [True, False, False, False]
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert [len(chunk.samples) for chunk in inner.chunks] == [1, 6]
    assert list(map(scores_of, chunks)) == [[1.0], [0.0, 1.0], [0.0], [1.0, 1.0, 0.0]]
    assert sum(chunk.seconds["min_length"] for chunk in chunks[1:]) == pytest.approx(
        inner.chunks[1].seconds["min_length"]
    )


async def test_only_what_wants_the_same_goes_together(gathering):
    executor, inner = gathering
    late = chunk_of(3)
    late.timeout_s = 5.0
    chunks = [chunk_of(1), chunk_of(3), chunk_of(3, min_chars=3), chunk_of(3, reward="format", prefix=""), late]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await settled()
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert [len(chunk.samples) for chunk in inner.chunks] == [1] * 5
    assert list(map(scores_of, chunks)) == [[0.0], [1.0], [0.0], [0.0], [1.0]]


async def test_expensive_rewards_are_not_piled_on_one_worker():
    inner = GatedExecutor()
    inner.gate.clear()
    executor = GatheringExecutor(TurnsExecutor(inner, Costs()), Costs())
    chunks = [chunk_of(3) for _ in range(5)]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await settled()
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert max(len(chunk.samples) for chunk in inner.chunks) == int(CHUNK_S / FIRST_GUESS_S)
    assert [scores_of(chunk) for chunk in chunks] == [[1.0]] * 5


async def test_who_leaves_takes_nothing_from_the_others(gathering):
    executor, inner = gathering
    first, leaver, stayer = chunk_of(3), chunk_of(3), chunk_of(2)
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in (first, leaver, stayer)]
    await settled()
    tasks[1].cancel()
    await settled()
    assert tasks[1].cancelled()
    inner.gate.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert (scores_of(first), scores_of(leaver), scores_of(stayer)) == ([1.0], [None], [0.0])
    assert inner.cancelled == 0


async def test_when_all_have_left_the_work_ends(gathering):
    executor, inner = gathering
    blocking = asyncio.create_task(executor.score(chunk_of(3)))
    tasks = [asyncio.create_task(executor.score(chunk_of(3))) for _ in range(2)]
    await settled()
    for task in tasks:
        task.cancel()
    await settled()
    inner.gate.set()
    await blocking
    await settled()
    assert len(inner.chunks) == 1
    # The place is free again, and what was left open takes nothing in any more.
    again = chunk_of(3)
    await asyncio.wait_for(executor.score(again), PATIENCE_S)
    assert scores_of(again) == [1.0]


async def test_who_comes_right_after_the_last_has_left_is_scored(gathering):
    executor, inner = gathering
    blocking = asyncio.create_task(executor.score(chunk_of(3)))
    leaver = asyncio.create_task(executor.score(chunk_of(3)))
    await settled()
    leaver.cancel()
    await asyncio.sleep(0)  # it has left, and what it waited for does not know yet
    late = chunk_of(3)
    task = asyncio.create_task(executor.score(late))
    inner.gate.set()
    await asyncio.gather(task, blocking)
    assert scores_of(late) == [1.0]


async def test_one_that_cannot_be_handed_over_costs_the_others_nothing(gathering):
    executor, inner = gathering
    score = InlineExecutor.score

    async def picky(self: InlineExecutor, chunk: Chunk) -> None:
        if any(sample["completion"] == "xxxxx" for sample in chunk.samples):
            raise ValueError("not this")
        await score(self, chunk)

    chunks = [chunk_of(1), chunk_of(3), chunk_of(5), chunk_of(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineExecutor, "score", picky)
        tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
        await settled()
        inner.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), type(None), ValueError, type(None)]
    assert [scores_of(chunk) for chunk in chunks] == [[0.0], [1.0], [None], [1.0]]


async def test_wrong_params_are_told_to_everybody(gathering):
    executor, inner = gathering
    chunks = [chunk_of(3, min_chars="many") for _ in range(3)]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await settled()
    inner.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [InvalidParams] * 3


async def test_when_workers_join_as_many_chunks_more_go_at_once_and_fewer_when_they_leave(gathering):
    executor, inner = gathering
    tasks = [asyncio.create_task(executor.score(chunk_of(3))) for _ in range(2)]
    await settled()
    assert len(inner.chunks) == 1  # the other waits for the one worker
    inner.workers = 3
    tasks += [asyncio.create_task(executor.score(chunk_of(3))) for _ in range(2)]
    await settled()
    assert [len(chunk.samples) for chunk in inner.chunks] == [1, 1, 2]  # the fourth with the one that waited
    inner.workers = 1
    inner.gate.set()
    await asyncio.gather(*tasks)
    inner.gate.clear()
    num_before = len(inner.chunks)
    tasks = [asyncio.create_task(executor.score(chunk_of(3))) for _ in range(4)]
    await settled()
    assert len(inner.chunks) == num_before + 1
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert [len(chunk.samples) for chunk in inner.chunks[num_before:]] == [1, 3]


async def test_nobody_waits_behind_what_hangs_in_the_requests_of_others():
    """What hangs would otherwise be waited for one after the other in one worker, while the rest have nothing to do."""

    class Hanging(GatedExecutor):
        """As `ProcessExecutor`: an item that is late is settled, and what is open then goes on."""

        async def score(self, chunk: Chunk) -> None:
            late = [item for item, sample in enumerate(chunk.samples) if sample["completion"] == "hang"]
            self.late_items.append(len(late))
            while items := chunk.open_items():
                if items[0] in late:
                    chunk.settle(items[0], RewardScore(score=None, status="timeout"))
                else:
                    chunk.scores[items[0]] = RewardScore(score=1.0, status="ok")
                await self.gate.wait()

        late_items: ClassVar[list[int]] = []

    inner, costs = Hanging(), Costs()
    inner.gate.clear()
    costs.learn("min_length", 0.0001)
    executor = GatheringExecutor(TurnsExecutor(inner, costs), costs)
    chunks = [chunk_of(3) for _ in range(6)]
    for chunk in chunks[1:4]:
        chunk.samples[0]["completion"] = "hang"
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await settled()
    inner.gate.set()
    await asyncio.gather(*tasks)
    assert [chunk.scores[0].status for chunk in chunks] == ["ok", "timeout", "timeout", "timeout", "ok", "ok"]
    # The first alone, those that wait together until the first of them is late, and what is left of them alone.
    assert inner.late_items == [0, 3, 1, 1, 0, 0]


async def test_who_waits_for_a_place_gets_one_although_all_workers_leave(gathering):
    executor, inner = gathering
    tasks = [asyncio.create_task(executor.score(chunk_of(3))) for _ in range(2)]
    await settled()
    inner.workers = 0
    inner.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks)
