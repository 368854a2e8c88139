"""An executor that waits until it is let: what is busy, and what is cancelled, can then be looked at."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from grpo_reward.executors.base import Chunk
from grpo_reward.executors.inline import InlineExecutor


class GatedExecutor(InlineExecutor):
    """`gate` is open at first. `chunks` are those that have come, `cancelled` counts those cut at the gate."""

    def __init__(self, plugins: Sequence[Path] = ()) -> None:
        super().__init__(plugins)
        self.gate = asyncio.Event()
        self.gate.set()
        self.chunks: list[Chunk] = []
        self.cancelled = 0

    async def busy(self, count: int) -> None:
        """Wait until `count` chunks have come."""
        async with asyncio.timeout(30):
            while len(self.chunks) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def score(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await super().score(chunk)
