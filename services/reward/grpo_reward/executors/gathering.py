"""Small chunks of different requests that want the same become one, while they wait for a worker.

Handing a chunk over costs more than a cheap score. A trainer that sends one sample a request, as many do, pays it for
each; where small chunks wait for each other anyway, they go together, as many as make a chunk of a good size. With
fewer of them under way than there are workers nothing is gathered.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pydantic_core import to_json

from ..costs import Costs
from .base import Chunk, Executor, ExecutorUnavailable, InvalidParams
from .wrapped import WrappedExecutor


@dataclass
class _Gathered:
    """Chunks on their way together. `chunk` is set when they leave."""

    key: bytes
    parts: list[Chunk] = field(default_factory=list)
    num_samples: int = 0
    waiting: int = 0
    chunk: Chunk | None = None
    work: asyncio.Task[None] | None = None


class GatheringExecutor(WrappedExecutor):
    """An `Executor` around one that has started.

    Waits for: one of as many places as there are workers (`_place`). Unblocked by: chunks that come back, and nodes of
    a cluster that join.
    """

    def __init__(self, executor: Executor, costs: Costs):
        super().__init__(executor)
        self._costs = costs
        self._num_places = executor.workers
        self._places = asyncio.Semaphore(self._num_places)
        self._open: dict[bytes, _Gathered] = {}

    async def score(self, chunk: Chunk) -> None:
        num_samples = len(chunk.samples)
        most = self._costs.chunk_samples(chunk.rewards)
        if chunk.batch or 2 * num_samples > most or len(chunk.open_items()) < chunk.num_items:
            await self._executor.score(chunk)
            return
        self._follow_workers()
        if not self._places.locked():
            async with self._place():
                await self._executor.score(chunk)
            return
        wanted = [(spec.name, spec.params) for spec in chunk.rewards]
        key = to_json([wanted, chunk.step, chunk.timeout_s])
        gathered = self._open.get(key)
        if gathered is None or gathered.num_samples + num_samples > most:
            gathered = self._open[key] = _Gathered(key)
            gathered.work = asyncio.create_task(self._run(gathered))
        first = gathered.num_samples
        gathered.parts.append(chunk)
        gathered.num_samples += num_samples
        await self._wait(gathered, chunk, first)

    async def _wait(self, gathered: _Gathered, chunk: Chunk, first: int) -> None:
        """Until all have come back. Cancelled, this chunk takes what there is, and the others go on."""
        work = gathered.work
        if work is None:
            raise RuntimeError("gathered chunks have a task from their beginning")
        gathered.waiting += 1
        try:
            await asyncio.shield(work)
        except (InvalidParams, ExecutorUnavailable):
            raise
        except Exception:
            # One of them cannot even be handed over.
            if len(gathered.parts) == 1:
                raise
            gathered.chunk = None
        finally:
            gathered.waiting -= 1
            if gathered.waiting == 0:
                self._close(gathered)
                work.cancel()
            if gathered.chunk is not None:
                width = len(chunk.rewards)
                chunk.scores = gathered.chunk.scores[first * width : (first + len(chunk.samples)) * width]
                share = len(chunk.samples) / len(gathered.chunk.samples)
                chunk.seconds = {name: seconds * share for name, seconds in gathered.chunk.seconds.items()}
        if chunk.open_items():  # alone, each has its own end
            await self._executor.score(chunk)

    async def _run(self, gathered: _Gathered) -> None:
        try:
            async with self._place():
                self._close(gathered)
                first = gathered.parts[0]
                samples = [sample for part in gathered.parts for sample in part.samples]
                gathered.chunk = Chunk(first.rewards, samples, first.step, first.timeout_s, together=True)
                await self._executor.score(gathered.chunk)
        finally:
            self._close(gathered)

    def _follow_workers(self) -> None:
        """Workers have joined: as many places more."""
        while self._num_places < self._executor.workers:
            self._num_places += 1
            self._places.release()

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        await self._places.acquire()
        try:
            yield
        finally:
            # One has left, and its place goes; not the last: nobody would wake those who wait for it.
            if self._num_places > max(self._executor.workers, 1):
                self._num_places -= 1
            else:
                self._places.release()

    def _close(self, gathered: _Gathered) -> None:
        """Nothing is added any more."""
        if self._open.get(gathered.key) is gathered:
            del self._open[gathered.key]
