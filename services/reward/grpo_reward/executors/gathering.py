"""Small chunks of different requests that want the same become one, while they wait for a worker.

Handing a chunk over costs more than a cheap score. A trainer that sends one sample a request, as many do, pays it for
each; where small chunks wait for each other anyway, they go together, as many as make a chunk of a good size. With a
free worker nothing is gathered.
"""

import asyncio
from dataclasses import dataclass

from pydantic_core import to_json

from ..cancellation import leaves_no_circle
from ..costs import Costs
from .base import Chunk, ExecutorUnavailable, InvalidParams
from .turns import TurnsExecutor
from .wrapped import WrappedExecutor


@dataclass
class _Gathered:
    """Chunks on their way together, in `chunk`. It grows until its turn begins."""

    key: bytes
    chunk: Chunk
    work: asyncio.Task[None] | None = None
    num_parts: int = 0
    waiting: int = 0
    handed_over: bool = True


class GatheringExecutor(WrappedExecutor):
    """An `Executor` around one that gives turns, whose `busy` and `taken_up` it needs."""

    def __init__(self, executor: TurnsExecutor, costs: Costs):
        super().__init__(executor)
        self._turns, self._costs = executor, costs
        self._open: dict[bytes, _Gathered] = {}

    async def score(self, chunk: Chunk) -> None:
        num_samples = len(chunk.samples)
        most = self._costs.chunk_samples(chunk.rewards)
        some_known = len(chunk.open_items()) < chunk.num_items
        if chunk.batch or some_known or 2 * num_samples > most or not self._turns.busy:
            await self._turns.score(chunk)
            return
        wanted = [(spec.name, spec.params) for spec in chunk.rewards]
        key = to_json([wanted, chunk.step, chunk.timeout_s])
        gathered = self._open.get(key)
        if gathered is None or len(gathered.chunk.samples) + num_samples > most:
            together = Chunk(chunk.rewards, [], chunk.step, chunk.timeout_s, together=True)
            gathered = self._open[key] = _Gathered(key, together)
            gathered.work = asyncio.create_task(self._run(gathered))
        chunk.since_s = asyncio.get_running_loop().time()  # its place in the queue, should it be scored alone
        first = len(gathered.chunk.samples)
        gathered.chunk.extend(chunk.samples)
        gathered.num_parts += 1
        await self._wait(gathered, chunk, first)

    async def _wait(self, gathered: _Gathered, chunk: Chunk, first: int) -> None:
        """Wait until all have come back. Cancelled, this chunk takes what there is, and the others go on."""
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
            if gathered.num_parts == 1:
                raise
            gathered.handed_over = False
        finally:
            gathered.waiting -= 1
            if gathered.waiting == 0:
                self._close(gathered)
                work.cancel()
            if gathered.handed_over:
                width = len(chunk.rewards)
                chunk.scores = gathered.chunk.scores[first * width : (first + len(chunk.samples)) * width]
                share = len(chunk.samples) / len(gathered.chunk.samples)
                chunk.seconds = {name: seconds * share for name, seconds in gathered.chunk.seconds.items()}
        if chunk.open_items():  # alone, each has its own end
            await self._turns.score(chunk)

    @leaves_no_circle
    async def _run(self, gathered: _Gathered) -> None:
        try:
            await self._turns.score(gathered.chunk, lambda: self._close(gathered))
        finally:
            self._close(gathered)
            gathered.work = None  # it knows `gathered`, too

    def _close(self, gathered: _Gathered) -> None:
        """Nothing is added any more."""
        if self._open.get(gathered.key) is gathered:
            del self._open[gathered.key]
