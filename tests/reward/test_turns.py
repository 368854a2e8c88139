"""Whoever holds the workers for long does not hold up what is quick."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.reward.machinery import SLEEPING
from tests.reward.real_server import LATE, Server

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.costs import Costs
from grpo_reward.executors.base import Chunk, Pace
from grpo_reward.executors.gathering import GatheringExecutor
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.executors.turns import TurnsExecutor, num_spare

LIMIT_S = 30.0


class Held(InlineExecutor):
    """With one worker and a spare one. A sample `hang` takes until `let_go`; every other scores 1 at once."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = 1
        self.let_go = asyncio.Event()
        self.begun: list[str] = []
        """The first sample of every chunk that a worker got."""
        self.ended: list[str] = []
        self.at_once = self.most_at_once = 0
        self.next_step: Callable[[], object] = bool
        """Called when a turn has just been given on."""

    async def score(self, chunk: Chunk) -> None:
        self.begun.append(text_of(chunk))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await chunk.at_work(self._work(chunk))
        finally:
            self.at_once -= 1

    async def _work(self, chunk: Chunk) -> None:
        for item in chunk.open_items():
            if chunk.samples[item]["completion"] == "hang":
                await self.let_go.wait()
            chunk.scores[item] = RewardScore(score=1.0, status="ok")
        self.ended.append(text_of(chunk))
        asyncio.get_running_loop().call_soon(self.next_step)


def text_of(chunk: Chunk) -> str:
    return " ".join(sample["completion"] for sample in chunk.samples)


def chunk_of(*texts: str, reward: str = "min_length", batch: bool = False) -> Chunk:
    samples = [{"completion": text, "columns": {}} for text in texts]
    return Chunk([RewardSpec(name=reward)], samples, None, 600.0, batch)


def of_request(pace: Pace, *texts: str) -> Chunk:
    chunk = chunk_of(*texts)
    chunk.pace = pace
    return chunk


async def until(what: object, *args: object) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not what(*args):  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def turns() -> tuple[TurnsExecutor, Held]:
    inner = Held()
    return TurnsExecutor(inner, Costs()), inner


async def begin(executor: TurnsExecutor, *chunks: Chunk) -> list[asyncio.Task[None]]:
    tasks = []
    for chunk in chunks:
        tasks.append(asyncio.create_task(executor.score(chunk)))
        await asyncio.sleep(0)
    return tasks


async def test_what_is_quick_overtakes_what_hangs(turns):
    executor, inner = turns
    slow = await begin(executor, chunk_of("hang"))
    async with asyncio.timeout(LIMIT_S):
        for _ in range(3):
            quick = chunk_of("quick")
            await executor.score(quick)
            assert quick.scores[0].score == 1.0
    assert not slow[0].done()
    inner.let_go.set()
    await slow[0]


async def test_what_is_slow_on_a_spare_worker_keeps_its_scores_and_waits_for_its_turn(turns):
    executor, inner = turns
    second = chunk_of("quick", "hang", "late")
    tasks = await begin(executor, chunk_of("hang"), second)
    await until(lambda: len(inner.begun) == 2)
    await until(lambda: inner.at_once == 1)  # it was taken away
    assert [score and score.score for score in second.scores] == [1.0, None, None]
    quick = chunk_of("quick")
    await asyncio.wait_for(executor.score(quick), LIMIT_S)  # the spare worker is free for others
    assert not tasks[1].done()
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert [score.score for score in second.scores] == [1.0, 1.0, 1.0]
    assert inner.begun == ["hang", "quick hang late", "quick", "quick hang late"]
    assert inner.most_at_once == 2


async def test_turns_are_given_in_order_when_nobody_holds_a_worker_for_long(turns):
    executor, inner = turns
    inner.spare = 0
    tasks = await begin(executor, chunk_of("hang"), chunk_of("a"), chunk_of("b"), chunk_of("c"))
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert inner.ended == ["hang", "a", "b", "c"]


async def test_the_cheapest_the_oldest_and_the_newest_overtake_by_turns():
    inner, costs = Held(), Costs()
    costs.learn("format", 0.2)
    costs.learn("min_length", 0.001)
    executor = TurnsExecutor(inner, costs)
    chunks = [chunk_of("dear", reward="format"), chunk_of("b", "b"), chunk_of("cheapest"), chunk_of("c", "c", "c")]
    tasks = await begin(executor, chunk_of("hang"), *chunks)
    await until(lambda: len(inner.ended) == 4)
    assert inner.ended == ["cheapest", "b b", "c c c", "dear"]
    # What hangs uses up the time of a rule: the oldest is next, and after it the newest.
    for hang, first in (("d", "x"), ("e", "z")):
        tasks += await begin(executor, chunk_of("hang", hang))
        await until(lambda: inner.at_once == 2)
        tasks += await begin(executor, chunk_of("x", reward="format"), chunk_of("y"), chunk_of("z", reward="format"))
        await until(lambda: {"x", "y", "z"} <= set(inner.ended))
        assert inner.ended[4] == first
        del inner.ended[4:]
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_who_was_late_before_comes_after_the_others(turns):
    executor, inner = turns
    pace = Pace()
    tasks = await begin(executor, chunk_of("hang"), of_request(pace, "hang"))
    await until(lambda: pace.num_late == 1)
    # The spare worker is at what hangs, and two wait for it.
    tasks += await begin(executor, chunk_of("hang"), of_request(pace, "again"), chunk_of("a stranger's"))
    await until(lambda: len(inner.ended) == 2)
    assert inner.ended == ["a stranger's", "again"]
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_what_was_late_for_another_reason_overtakes_again(turns):
    """While the worker is held for ten minutes: the machine was busy for a moment."""
    executor, inner = turns
    chunk = chunk_of("hang")
    tasks = await begin(executor, chunk_of("hang"), chunk)
    await until(lambda: len(inner.begun) == 2)
    chunk.samples[0]["completion"] = "quick"
    await asyncio.wait_for(tasks[1], LIMIT_S)
    assert inner.begun == ["hang", "hang", "quick"]
    assert not tasks[0].done()
    inner.let_go.set()
    await tasks[0]


@pytest.mark.processes
async def test_what_was_late_overtakes_less_and_less_often_and_after_the_others(turns, monkeypatch):
    monkeypatch.setattr("grpo_reward.executors.turns.AGAIN_S", (0.1, 0.2))
    executor, inner = turns
    late, batch = chunk_of("hang", "late"), chunk_of("hang", "batch", reward="format", batch=True)
    await executor.score(chunk_of("quick", reward="format", batch=True))  # so a batch of it may overtake, once
    inner.begun.clear()
    tasks = await begin(executor, chunk_of("hang"), late, batch)
    await until(lambda: inner.begun.count("hang late") == 2)
    # The spare worker is at it the second time, and two wait for it: who is there for the first time goes first.
    tasks += await begin(executor, chunk_of("hang", "stranger"))
    await until(lambda: inner.begun.count("hang stranger") == 3 and inner.at_once == 1)
    assert inner.begun[:5] == ["hang", "hang batch", "hang late", "hang late", "hang stranger"]
    await asyncio.sleep(0.5)
    assert [inner.begun.count(text) for text in ("hang late", "hang batch", "hang stranger")] == [3, 1, 3]
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_a_reward_that_is_often_late_comes_after_the_others(turns):
    executor, inner = turns
    tasks = await begin(executor, chunk_of("hang"))
    for reward in ("format", "regex"):  # two rules have had their time
        tasks += await begin(executor, chunk_of("hang", reward=reward))
        await until(lambda: inner.at_once == 2)
        await until(lambda: inner.at_once == 1)
    # The spare worker is at what hangs, and two wait for it: it is the cheapest's turn.
    last = [chunk_of("hang", reward="tag_count"), chunk_of("cheap"), chunk_of("x", reward="format")]
    tasks += await begin(executor, *last)
    await until(lambda: len(inner.ended) == 2)
    assert inner.ended == ["cheap", "x"]
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_who_leaves_late_was_late(turns, monkeypatch):
    executor, inner = turns
    with monkeypatch.context() as patch:
        patch.setattr("grpo_reward.executors.turns.QUICK_S", 0.0)
        [leaving] = await begin(executor, chunk_of("hang"))
        await until(lambda: inner.begun == ["hang"])
        leaving.cancel()
        await asyncio.wait([leaving])
    tasks = await begin(executor, chunk_of("hang"), chunk_of("other", reward="format"), chunk_of("again"))
    await until(lambda: len(inner.ended) == 2)
    assert inner.ended == ["other", "again"]  # without lateness the newest of two that cost the same comes first
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_a_batch_overtakes_when_its_reward_was_quick_before(turns):
    """It may ask somebody else, and pay for it, and nothing would be left of what was taken away."""
    executor, inner = turns
    tasks = await begin(executor, chunk_of("hang"), chunk_of("batch", batch=True))
    await asyncio.wait_for(executor.score(chunk_of("quick", reward="format")), LIMIT_S)
    assert inner.begun == ["hang", "quick"]
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert inner.ended == ["quick", "hang", "batch"]
    inner.let_go.clear()
    tasks = await begin(executor, chunk_of("hang", reward="format"))
    await asyncio.wait_for(executor.score(chunk_of("batch", batch=True)), LIMIT_S)
    assert not tasks[0].done()
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_what_is_late_on_a_spare_worker_keeps_its_place_among_those_who_wait(turns):
    executor, inner = turns
    tasks = await begin(executor, chunk_of("hang"), chunk_of("hang", "first"), chunk_of("second", batch=True))
    await until(lambda: len(inner.begun) == 2)
    await until(lambda: inner.at_once == 1)
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert inner.ended == ["hang", "hang first", "second"]


async def test_what_is_quick_is_seen_behind_many_that_hang(turns):
    executor, inner = turns
    many = [chunk_of("hang", "hang") for _ in range(100)]
    tasks = await begin(executor, chunk_of("hang"), *many)
    await asyncio.wait_for(executor.score(chunk_of("quick")), LIMIT_S)
    assert len(inner.begun) < 10
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_a_worker_that_joins_is_given_to_who_waits_already(turns):
    """Nobody comes and nobody goes: all clients wait."""
    executor, inner = turns
    tasks = await begin(executor, chunk_of("hang"), chunk_of("hang"))
    await until(lambda: len(inner.begun) == 2)
    await until(lambda: inner.at_once == 1)
    inner.workers = 2
    await until(lambda: inner.at_once == 2)
    inner.let_go.set()
    await asyncio.gather(*tasks)


async def test_what_is_late_while_all_workers_are_gone_may_overtake_again(turns):
    executor, inner = turns
    pace = Pace()
    chunk = of_request(pace, "hang")
    tasks = await begin(executor, chunk_of("hang"), chunk)
    await until(lambda: len(inner.begun) == 2)
    inner.spare = 0
    await until(lambda: inner.at_once == 1)
    assert pace.num_late == 0
    chunk.samples[0]["completion"] = "quick"
    inner.spare = 1
    await asyncio.wait_for(tasks[1], LIMIT_S)
    assert not tasks[0].done()
    inner.let_go.set()
    await tasks[0]


async def test_what_a_spare_worker_has_ended_with_is_not_scored_once_more(turns):
    """Chunks of several requests come back with open scores from a node, which does not say that they have ended."""
    executor, inner = turns
    tasks = await begin(executor, chunk_of("hang"))

    async def ends(chunk: Chunk) -> None:
        chunk.scores[0] = RewardScore(score=None, status="timeout")

    inner.score = ends
    chunk = Chunk([RewardSpec(name="min_length")], chunk_of("a", "b").samples, None, 600.0, together=True)
    await asyncio.wait_for(executor.score(chunk), LIMIT_S)
    assert not tasks[0].done()
    inner.let_go.set()
    await tasks[0]


@pytest.mark.parametrize("when", ["waiting", "given its turn", "on the spare worker", "at work"])
async def test_who_leaves_takes_no_turn_with_it(turns, when):
    executor, inner = turns
    holder, leaver = chunk_of("hang"), chunk_of("hang", "leaver")
    tasks = await begin(executor, holder, leaver)
    if when == "on the spare worker":
        await until(lambda: len(inner.begun) == 2)
    leaving = tasks[0] if when == "at work" else tasks[1]
    if when == "given its turn":
        inner.next_step = leaving.cancel
        inner.let_go.set()
    else:
        leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    inner.let_go.set()
    await asyncio.gather(*(task for task in tasks if task is not leaving))
    inner.let_go.clear()
    # One worker and a spare one, no more and no less.
    tasks = await begin(executor, chunk_of("hang"))
    inner.most_at_once = 1
    await asyncio.wait_for(asyncio.gather(*(executor.score(chunk_of("quick")) for _ in range(3))), LIMIT_S)
    assert inner.most_at_once == 2
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert not executor.busy


async def test_nobody_is_late_with_what_was_gathered_with_a_sample_that_hangs():
    inner, costs = Held(), Costs()
    costs.learn("min_length", 0.0001)
    executor = GatheringExecutor(TurnsExecutor(inner, costs), costs)
    chunks = [chunk_of("hang"), chunk_of("a"), chunk_of("hang"), chunk_of("b")]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await until(lambda: tasks[1].done() and tasks[3].done())
    assert [task.done() for task in tasks] == [False, True, False, True]
    assert inner.begun[:2] == ["hang", "a hang b"]
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert [chunk.scores[0].score for chunk in chunks] == [1.0] * 4


async def test_what_was_gathered_does_not_wait_at_a_worker_for_a_sample_that_hangs():
    """Nor at one that is not spare: what was gathered is a stranger's, and may take ten minutes."""
    inner, costs = Held(), Costs()
    inner.spare = 0
    costs.learn("min_length", 0.0001)
    executor = GatheringExecutor(TurnsExecutor(inner, costs), costs)
    chunks = [chunk_of("hang"), chunk_of("a"), chunk_of("hang"), chunk_of("b")]
    tasks = [asyncio.create_task(executor.score(chunk)) for chunk in chunks]
    await until(lambda: inner.at_once == 1)
    inner.workers = 2
    await until(lambda: inner.begun[1:] == ["a hang b"])
    inner.spare = 1
    await until(lambda: tasks[1].done() and tasks[3].done())
    assert [task.done() for task in tasks] == [False, True, False, True]
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert [chunk.scores[0].score for chunk in chunks] == [1.0] * 4


async def test_what_was_gathered_has_its_place_among_those_who_waited_with_it(turns):
    executor, inner = turns
    inner.spare = 0
    gathered = chunk_of("gathered")
    gathered.since_s = asyncio.get_running_loop().time()
    tasks = await begin(executor, chunk_of("hang"), chunk_of("later"), gathered)
    inner.let_go.set()
    await asyncio.gather(*tasks)
    assert inner.ended == ["hang", "gathered", "later"]


@pytest.mark.processes
def test_a_server_whose_workers_all_wait_for_ten_minutes_scores_what_is_quick(misbehaving: Path):
    """Twice as many requests as workers, each with a program that sleeps."""
    sample = {"completion": "<answer>3 + 4</answer>", "columns": {"nums": [3, 4], "target": 7, "solution": "$7$"}}
    rewards = [{"name": "countdown"}, {"name": "accuracy"}]
    quick = [{"rewards": rewards, "samples": [sample] * num_samples} for num_samples in (1, 64)]
    server = Server("--plugin", str(misbehaving), "--grace-s", "0.3")
    try:
        asyncio.run(_quick_beside_slow(server.url, [SLEEPING, LATE], quick))
    finally:
        server.stop()


async def _quick_beside_slow(url: str, slow: list[dict[str, object]], quick: list[dict[str, object]]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        waiting = [asyncio.create_task(client.post("/v1/score", json=body)) for body in slow * 2]
        await asyncio.sleep(0.5)
        for body in quick * 3:
            answer = (await client.post("/v1/score", json=body)).raise_for_status().json()
            assert {score["status"] for result in answer["results"] for score in result["rewards"].values()} == {"ok"}
        assert [task.result().text for task in waiting if task.done()] == []
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def test_there_is_a_spare_worker_for_every_eight():
    assert [num_spare(workers) for workers in (1, 2, 8, 15, 16, 64)] == [1, 1, 1, 1, 2, 8]
