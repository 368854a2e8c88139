"""A chunk that turns out to be dearer than it should be gives its worker back between two samples."""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grpo_proto import RewardScore, RewardSpec
from grpo_reward.costs import Costs
from grpo_reward.executors import process, turns
from grpo_reward.executors.base import Chunk, Pace
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.executors.turns import QUICK_S, TurnsExecutor

pytestmark = pytest.mark.processes

LIMIT_S = 60.0
NAP = """
import time
from grpo_reward import reward

@reward
def nap(completion: str) -> float:
    time.sleep(float(completion))
    return float(completion)
"""


def naps(*seconds: float, timeout_s: float = 30.0) -> Chunk:
    samples = [{"completion": str(one), "columns": {}} for one in seconds]
    return Chunk([RewardSpec(name="nap")], samples, None, timeout_s, pace=Pace())


def scores(chunk: Chunk) -> list[float | None]:
    return [score and score.score for score in chunk.scores]


@asynccontextmanager
async def workers(tmp_path: Path, *, spare: int) -> AsyncIterator[ProcessExecutor]:
    plugin = tmp_path / "nap.py"
    plugin.write_text(NAP)
    executor = ProcessExecutor(workers=1, spare=spare, plugins=[plugin])
    await executor.start()
    try:
        yield executor
    finally:
        await executor.stop()


async def test_a_worker_begins_no_sample_after_the_turn(tmp_path: Path):
    async with workers(tmp_path, spare=0) as executor:
        chunk = naps(*[0.06] * 6)
        chunk.turn_s = 0.1
        scored = 0
        while chunk.open_items():
            before = scored
            await executor.score(chunk)
            scored = 6 - len(chunk.open_items())
            assert scored - before in (1, 2)  # one where the first nap has been longer than its turn
            assert scores(chunk) == [0.06] * scored + [None] * (6 - scored)
        assert chunk.seconds["nap"] >= 0.36


async def test_others_have_their_turn_in_between(tmp_path: Path):
    async with workers(tmp_path, spare=0) as inner:
        executor = TurnsExecutor(inner, Costs())
        long, short = naps(*[0.1] * 30), naps(0.001)
        waiting = asyncio.create_task(executor.score(long))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(executor.score(short), LIMIT_S)
        assert scores(short) == [0.001]
        assert len(long.open_items()) > 20
        await asyncio.wait_for(waiting, LIMIT_S)
        assert scores(long) == [0.1] * 30


async def test_many_quick_samples_come_past_who_holds_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Together they take longer than the spare worker gives, which is no lateness of theirs."""
    # Far from the length of a turn: one delay of the machine makes no turn late.
    monkeypatch.setattr(turns, "QUICK_S", 2.0)
    async with workers(tmp_path, spare=1) as inner:
        executor = TurnsExecutor(inner, Costs())
        holder, quick = naps(LIMIT_S * 2, timeout_s=LIMIT_S * 3), naps(*[0.01] * 300)
        waiting = asyncio.create_task(executor.score(holder))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(executor.score(quick), LIMIT_S)
        assert scores(quick) == [0.01] * 300
        assert quick.pace.num_late == 0
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_what_waits_for_a_worker_to_start_is_not_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a busy machine a worker that was killed is replaced more slowly than the spare one has to score."""
    async with workers(tmp_path, spare=1) as inner:
        monkeypatch.setattr(turns, "QUICK_S", 1.0)  # more than a busy machine needs for what is quick
        monkeypatch.setattr(process, "SPAWN_BACKOFF_S", (2.0,))
        executor = TurnsExecutor(inner, Costs())
        holder, late, quick = naps(LIMIT_S), naps(LIMIT_S), naps(0.001)
        waiting = [asyncio.create_task(executor.score(chunk)) for chunk in (holder, late)]
        async with asyncio.timeout(LIMIT_S):
            while not late.pace.num_late:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await executor.score(quick)
        assert scores(quick) == [0.001]
        assert quick.pace.num_late == 0
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_what_waits_for_a_worker_gives_the_spare_turn_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And is not late: it may overtake as before when there are workers again."""
    async with workers(tmp_path, spare=1) as inner:
        monkeypatch.setattr(turns, "NO_WORKER_S", 0.05)
        score, tries = inner.score, 0

        async def finds_no_worker_at_first(chunk: Chunk) -> None:
            nonlocal tries
            tries += chunk is quick
            if 1 <= tries <= 3:
                await asyncio.Event().wait()
            await score(chunk)

        monkeypatch.setattr(inner, "score", finds_no_worker_at_first)
        executor = TurnsExecutor(inner, Costs())
        holder, quick = naps(LIMIT_S), naps(0.001)
        waiting = asyncio.create_task(executor.score(holder))
        await asyncio.wait_for(executor.score(quick), LIMIT_S)
        assert scores(quick) == [0.001]
        assert (tries, quick.pace.num_late) == (4, 0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_the_limit_is_for_all_workers_that_have_it_in_a_turn():
    """Each that dies of it would have a whole one otherwise."""
    chunk = naps(1)
    chunk.limit_s = LIMIT_S
    assert await chunk.at_work(asyncio.sleep(0.02, "first")) == "first"
    assert chunk.limit_s <= LIMIT_S - 0.02
    chunk.limit_s = 0.02
    assert await chunk.at_work(asyncio.sleep(LIMIT_S)) is None
    assert chunk.taken_away
    assert chunk.limit_s <= 0


async def test_a_sample_whose_short_time_has_run_out_is_late_and_has_cost_it(tmp_path: Path):
    async with workers(tmp_path, spare=1) as inner:
        executor = TurnsExecutor(inner, Costs())
        chunk = naps(0.001, 5.0, timeout_s=QUICK_S / 4)
        await asyncio.wait_for(executor.score(chunk), LIMIT_S)
        assert [score and score.status for score in chunk.scores] == ["ok", "timeout"]
        assert chunk.pace.num_late == 1
        assert chunk.seconds["nap"] >= QUICK_S / 4


async def test_workers_come_back_when_there_are_descriptors_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Connections may have taken them all for a while: that ended the server."""
    async with workers(tmp_path, spare=0) as executor:
        tries, handle = itertools.count(), process.WorkerHandle

        def none_left(number: int, **named: object) -> process.WorkerHandle:
            if next(tries) < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return handle(number, **named)

        monkeypatch.setattr(process, "WorkerHandle", none_left)
        late = naps(5.0, timeout_s=0.05)
        await asyncio.wait_for(executor.score(late), LIMIT_S)
        after = naps(0.001)
        await asyncio.wait_for(executor.score(after), LIMIT_S)
        assert scores(after) == [0.001]
        assert next(tries) > 3
        assert executor.failed is None


def test_a_handle_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch):
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def make() -> None:
        monkeypatch.setattr("mmap.mmap", none_left)
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="Too many open files"):
            process.WorkerHandle(1)
        assert os.listdir("/proc/self/fd") == before

    asyncio.run(make())


def test_what_a_node_sends_back_fills_what_is_open():
    """A sample goes there again with all its rewards when one of them is open; what was there stays."""
    chunk = Chunk([RewardSpec(name="a"), RewardSpec(name="b")], naps(1, 2, 3).samples, None, 1.0)
    chunk.scores[:4] = [RewardScore(score=float(item), status="ok") for item in range(3)] + [None]
    assert chunk.open_rows() == [1, 2]
    answer = [RewardScore(score=10.0 + item, status="ok") for item in range(3)]
    chunk.fill([1, 2], [*answer, None])
    assert scores(chunk) == [0.0, 1.0, 2.0, 11.0, 12.0, None]
    chunk.batch = True
    assert chunk.open_rows() == [0, 1, 2]
