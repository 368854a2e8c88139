"""Turns and gathering in a crowd in which everything happens: hangs, failures, clients that leave, workers that go."""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reward.machinery import PATIENCE_S, fork_server

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.costs import Costs
from grpo_reward.executors import turns
from grpo_reward.executors.base import Chunk, ExecutorUnavailable, InvalidParams
from grpo_reward.executors.descendants import processes
from grpo_reward.executors.gathering import GatheringExecutor
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.executors.turns import TurnsExecutor
from grpo_reward.executors.worker_handle import Ending, WorkerHandle

pytestmark = pytest.mark.processes

NUM_CHUNKS = 250
HANG_S = 0.1
"""An item that hangs is late after this."""
NUMBER = """
import time
from grpo_reward import reward

@reward
def number(completion: str) -> float:
    if completion.startswith("hang"):
        time.sleep(600)
    return float(completion)
"""


class Fickle(InlineExecutor):
    """The score of a sample is its own number. What else is in its text happens: `7 slow`, `8 hang`, `9 broken`.

    `0 hold` ends when it is cancelled.

    Args:
        as_node: chunks come back whole, and do not say that they have ended, as from a node of a cluster.
    """

    def __init__(self, random: random.Random, *, as_node: bool):
        super().__init__()
        self.workers, self.spare = 2, 1
        self.turns: TurnsExecutor
        self.as_node, self._random = as_node, random
        self.at_once = self.most_at_once = 0
        self.at_end: Callable[[], object] = bool
        """Called when a chunk has ended, before its turn is given on."""

    async def score(self, chunk: Chunk) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        work = chunk
        if self.as_node:
            work = Chunk(chunk.rewards, chunk.samples, None, chunk.timeout_s, chunk.batch, chunk.together)
            work.limit_s = chunk.limit_s
        try:
            if self.failed:
                raise ExecutorUnavailable(self.failed)
            if any("wrong" in spec.params for spec in chunk.rewards):
                raise InvalidParams("min_length", "wrong")
            if any("broken" in sample["completion"] for sample in chunk.samples):
                raise ValueError("this cannot be handed over")
            await work.at_work(self._score(work))
        finally:
            self.at_once -= 1
            self.at_end()
        chunk.scores, chunk.taken_away = work.scores, work.taken_away

    async def _score(self, chunk: Chunk) -> None:
        while items := chunk.open_items():
            await self._score_item(chunk, items[0])

    async def _score_item(self, chunk: Chunk, item: int) -> None:
        width = len(chunk.scores) if chunk.batch else 1
        texts = [sample["completion"] for sample in chunk.samples[item : item + width]]
        if "hold" in texts[0]:
            await asyncio.Event().wait()
        if any("hang" in text for text in texts):
            await asyncio.sleep(HANG_S)
            chunk.settle(item, RewardScore(score=None, status="timeout"))
            return
        await asyncio.sleep(self._random.choice([0, 0, 0.0005]) if "slow" not in texts[0] else 0.03)
        if self.failed:
            raise ExecutorUnavailable(self.failed)
        for position, text in enumerate(texts, item):
            chunk.scores[position] = RewardScore(score=number_of(text), status="ok")


def holding() -> Chunk:
    return Chunk([RewardSpec(name="min_length")], [{"completion": "0 hold", "columns": {}}], None, 600.0)


def number_of(text: str) -> float:
    return float(text.split()[0])


class Crowd:
    def __init__(self, seed: int, *, as_node: bool):
        self.random = random.Random(seed)
        self.inner, self.costs = Fickle(self.random, as_node=as_node), Costs()
        self.costs.learn("min_length", 0.0005)
        self.inner.turns = TurnsExecutor(self.inner, self.costs)
        self.executor = GatheringExecutor(self.inner.turns, self.costs)
        self._numbers = itertools.count()
        self._chunks: list[weakref.ref[Chunk]] = []

    def chunk(self) -> Chunk:
        kinds = self.random.choices(["", "slow", "hang", "broken"], [90, 6, 3, 1], k=self.random.randint(1, 4))
        samples = [{"completion": f"{next(self._numbers)} {kind}", "columns": {}} for kind in kinds]
        params = self.random.choices([{}, {"min_chars": 2}, {"wrong": True}], [60, 38, 2])[0]
        spec = RewardSpec(name="min_length", params=params)
        chunk = Chunk([spec], samples, None, 600.0, batch=self.random.random() < 0.1)
        if self.random.random() < 0.1 and not chunk.batch:  # remembered
            chunk.scores[0] = RewardScore(score=number_of(samples[0]["completion"]), status="ok")
        self._chunks.append(weakref.ref(chunk))
        return chunk

    async def client(self) -> None:
        """Sends a chunk and looks at what comes back, or leaves before."""
        chunk = self.chunk()
        [spec] = chunk.rewards
        texts = [sample["completion"] for sample in chunk.samples]
        await asyncio.sleep(self.random.random())
        patience_s = self.random.choice([None, None, 0.0, 0.004, turns.QUICK_S, 0.2])
        refusals = {
            InvalidParams: "wrong" in spec.params,
            ValueError: any("broken" in text for text in texts),
        }
        try:
            async with asyncio.timeout(patience_s):
                await self.executor.score(chunk)
        except TimeoutError:
            assert patience_s is not None
        except ExecutorUnavailable:
            assert self.inner.failed
        except (InvalidParams, ValueError) as refusal:
            if not refusals[type(refusal)]:
                raise
        else:
            assert None not in chunk.scores
        for score, text in zip(chunk.scores, texts, strict=True):
            if score is not None and score.status == "timeout":
                assert "hang" in " ".join(texts if chunk.batch else [text])
            elif score is not None:
                assert score.score == number_of(text)

    async def all_done(self, clients: list[asyncio.Task[None]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(clients)
        for task in clients:
            assert task.cancelled() or task.exception() is None, task.exception()
        for _ in range(10):  # what was gathered ends after its last client has left
            await asyncio.sleep(0)
        assert self.inner.at_once == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await self._no_turn_is_lost_or_given_twice()
        known = [weakref.ref(self.inner.turns), *self._chunks]
        del self.executor, self.inner.turns, task
        clients.clear()  # what they raised knows their chunks
        gc.collect()
        assert not any(one() for one in known), "a timer has the executor, or something has a chunk"

    async def _no_turn_is_lost_or_given_twice(self) -> None:
        """Each of two workers is there for one chunk, and the spare one for one of two that wait."""
        inner, of_turns = self.inner, self.inner.turns
        inner.workers, inner.spare, inner.failed, inner.most_at_once, inner.at_end = 2, 1, None, 0, bool
        holders: list[asyncio.Task[None]] = []
        for num_taken in (1, 2):
            assert not of_turns.busy
            holders.append(asyncio.create_task(of_turns.score(holding())))
            await asyncio.sleep(0)
            assert inner.at_once == num_taken
        assert of_turns.busy
        holders += [asyncio.create_task(of_turns.score(holding())) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_S):
            while inner.most_at_once < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert inner.most_at_once == 3
        await left_alone(*holders)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(turns, "QUICK_S", 0.02)
    monkeypatch.setattr(turns, "OVERTAKE_AFTER_S", 0.005)
    monkeypatch.setattr(turns, "LOOK_S", 2 * PATIENCE_S)  # nobody may need it who waits for what others give back
    gc.freeze()  # a collection then looks at what the test has made alone, which takes no time
    yield
    gc.unfreeze()


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_everybody_gets_what_is_his_own_and_no_turn_is_lost(hurry, seed, as_node):
    crowd = Crowd(seed, as_node=as_node)
    clients = [asyncio.create_task(crowd.client()) for _ in range(NUM_CHUNKS)]
    while not all(task.done() for task in clients):
        await asyncio.sleep(0.01)
        crowd.random.choice(clients).cancel()
    assert crowd.inner.most_at_once == 3
    await crowd.all_done(clients)


@pytest.mark.parametrize("seed", range(3))
async def test_the_same_while_workers_come_and_go(hurry, monkeypatch, seed):
    monkeypatch.setattr(turns, "LOOK_S", 0.02)
    crowd = Crowd(seed, as_node=True)
    clients = [asyncio.create_task(crowd.client()) for _ in range(NUM_CHUNKS)]
    while not all(task.done() for task in clients):
        await asyncio.sleep(0.01)
        crowd.inner.workers, crowd.inner.spare = crowd.random.randint(0, 5), crowd.random.randint(0, 2)
        crowd.random.choice(clients).cancel()
    await crowd.all_done(clients)


async def test_when_nothing_can_be_scored_any_more_everybody_hears_it(hurry):
    crowd = Crowd(0, as_node=False)
    clients = [asyncio.create_task(crowd.client()) for _ in range(NUM_CHUNKS)]
    await asyncio.sleep(0.5)
    crowd.inner.failed = "the end"
    await crowd.all_done(clients)


async def test_a_turn_that_comes_together_with_the_end_of_its_owner_goes_to_the_next(hurry):
    """The owner is told to leave before, in and after the step in which it is given its turn."""
    for num_steps, spare in itertools.product(range(6), [0, 1]):
        crowd = Crowd(0, as_node=False)
        crowd.inner.workers, crowd.inner.spare = 1, spare
        holder, owner, other = (
            Chunk([RewardSpec(name="min_length")], [{"completion": text, "columns": {}}], None, 600.0, batch=True)
            for text in ("1 slow", "2", "3")
        )
        tasks = [asyncio.create_task(crowd.inner.turns.score(chunk)) for chunk in (holder, owner, other)]
        crowd.inner.at_end = functools.partial(_cancel_after, num_steps, tasks[1])
        await crowd.all_done(tasks)
        assert [chunk.scores[0] and chunk.scores[0].score for chunk in (holder, other)] == [1.0, 3.0]


def _cancel_after(num_steps: int, task: asyncio.Task[None]) -> None:
    if num_steps == 0:
        task.cancel()
    else:
        asyncio.get_running_loop().call_soon(_cancel_after, num_steps - 1, task)


@pytest.fixture
async def machinery(tmp_path: Path) -> AsyncIterator[Callable[..., ProcessExecutor]]:
    executors = []
    plugin = tmp_path / "number.py"
    plugin.write_text(NUMBER)

    async def start(**options: Any) -> ProcessExecutor:
        executors.append(ProcessExecutor(plugins=[plugin], **options))
        await executors[-1].start()
        return executors[-1]

    yield start
    for executor in executors:
        await executor.stop()


def numbers(*texts: str) -> Chunk:
    return Chunk([RewardSpec(name="number")], [{"completion": text, "columns": {}} for text in texts], None, 600.0)


async def left_alone(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.faults
async def test_workers_and_the_fork_server_are_killed_while_what_hangs_holds_the_workers(machinery):
    executor = await machinery(workers=2, spare=1)
    of_turns = TurnsExecutor(executor, Costs())
    gathering = GatheringExecutor(of_turns, Costs())
    ended = asyncio.Event()

    async def client(first: int) -> int:
        for number in itertools.count(first):
            texts = [str(100 * number), str(100 * number + 1)]
            chunk = numbers(*texts)
            await gathering.score(chunk)
            assert [score.score for score in chunk.scores] == [float(text) for text in texts], chunk.scores
            if ended.is_set():
                return number - first
        raise AssertionError

    async def hangs() -> None:
        while True:  # killed twice, it has ended
            await gathering.score(numbers("hang"))

    hanging = [asyncio.create_task(hangs()) for _ in range(4)]
    clients = [asyncio.create_task(client(100_000 * number)) for number in range(6)]
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await asyncio.sleep(0.5)
            server = fork_server(executor)
            for pid in [process.pid for process in processes() if process.parent == server]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            os.kill(server, signal.SIGKILL)
            while executor.spare:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            while not executor.spare:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        ended.set()
        await asyncio.gather(*clients)
    await left_alone(*hanging)
    await asyncio.sleep(0)
    hanging = []
    for _ in range(2):
        assert not of_turns.busy
        hanging.append(asyncio.create_task(of_turns.score(numbers("hang"))))
        await asyncio.sleep(0)
    assert of_turns.busy
    chunk = numbers("1", "2", "3")
    await asyncio.wait_for(gathering.score(chunk), PATIENCE_S)  # the spare worker is there for it
    assert [score.score for score in chunk.scores] == [1.0, 2.0, 3.0]
    await left_alone(*hanging)


@pytest.mark.faults
async def test_who_waited_while_the_fork_server_was_started_again_still_overtakes(machinery):
    executor = await machinery(workers=1, spare=1)
    of_turns = TurnsExecutor(executor, Costs())
    hanging = asyncio.create_task(of_turns.score(numbers("hang")))
    await asyncio.sleep(0.2)
    os.kill(fork_server(executor), signal.SIGKILL)
    chunks = [numbers("1"), numbers("2")]
    async with asyncio.timeout(PATIENCE_S):
        while executor.spare:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.gather(*map(of_turns.score, chunks))
    assert [chunk.scores[0].score for chunk in chunks] == [1.0, 2.0]
    assert not hanging.done()
    await left_alone(hanging)


@pytest.mark.faults
async def test_workers_lost_just_after_they_had_finished_are_not_given_to_others(machinery, monkeypatch):
    """Each would count as a death of what it is given."""
    lost = asyncio.Event()
    executor = await machinery(workers=8, on_restart=lambda cause: lost.set())
    run, finished = WorkerHandle.run, asyncio.Barrier(8)

    async def run_and_lose(self: WorkerHandle, chunk: Chunk, items: list[int]) -> Ending:
        ending = await run(self, chunk, items)
        if await finished.wait() == 0:
            os.kill(fork_server(executor), signal.SIGKILL)
        await lost.wait()
        return ending

    with monkeypatch.context() as patch:
        patch.setattr(WorkerHandle, "run", run_and_lose)
        await asyncio.gather(*(executor.score(numbers("1")) for _ in range(8)))
    chunk = numbers("2")
    await asyncio.wait_for(executor.score(chunk), PATIENCE_S)
    assert chunk.scores[0].score == 2.0, chunk.scores


async def test_who_waits_for_a_worker_hears_that_the_server_ends(machinery):
    executor = await machinery(workers=1)
    tasks = [asyncio.create_task(executor.score(numbers(text))) for text in ("hang", "1")]
    await asyncio.sleep(0.2)
    await executor.stop()
    done, waiting = await asyncio.wait(tasks, timeout=PATIENCE_S)
    for task in waiting:
        task.cancel()
    assert [type(task.exception()) for task in done] == [ExecutorUnavailable] * 2
