"""Whose turn it is at a worker: first come, first served, and a way past those who hold the workers for long.

A program that waits for its ten minutes, or a plugin that takes its time, would otherwise hold up every countdown
behind it. A chunk that has waited for OVERTAKE_AFTER_S, or comes when nobody has been given a worker for so long, may
use a spare one and has to be quick there: what is not scored after QUICK_S is taken away and waits for its turn. First
come chunks of requests that were not late there before, and of those the cheapest. A batch, which may ask somebody else
and pay for it, comes there when its reward is known to be quick.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ..costs import CHUNK_S, Costs
from .base import Chunk, Executor
from .wrapped import WrappedExecutor

OVERTAKE_AFTER_S = 0.1
"""Longer than a turn takes as a rule, short against a person's patience."""
QUICK_S = 30 * CHUNK_S
"""A chunk that should take CHUNK_S may take this, on a busy machine."""
MOSTLY = 0.5
"""Of the last turns of a reward."""
LOOKED_AT = 64
"""Of those that wait longest the best overtakes; so many of them are compared."""


def num_spare(workers: int) -> int:
    """Workers that are kept beside `workers`, for what overtakes."""
    return max(1, workers // 8)


@dataclass(eq=False)
class _Waiting:
    chunk: Chunk
    turn: "asyncio.Future[bool]"
    """Done when it has a turn; True with a spare worker."""
    since_s: float


class TurnsExecutor(WrappedExecutor):
    """An `Executor` around one that has started and has `workers` and `spare` workers.

    Waits for: a turn (`_Waiting.turn`). Unblocked by: chunks that come back, and a timer when the oldest of those that
    may overtake has waited long enough.
    """

    def __init__(self, executor: Executor, costs: Costs):
        super().__init__(executor)
        self._costs = costs
        self._running = self._overtaking = 0
        self._waiting: dict[_Waiting, None] = {}
        self._overtakers: dict[_Waiting, None] = {}
        """Of `_waiting`, those that a spare worker may take."""
        self._timer: asyncio.TimerHandle | None = None
        self._late: dict[str, float] = {}
        """Reward → share of its last turns that took longer than QUICK_S."""
        self._last_turn_s = 0.0
        """When a worker was last given to somebody, spare ones left aside."""

    @property
    def busy(self) -> bool:
        """Whether a chunk would wait for its turn now."""
        return self._running >= max(self._executor.workers, 1)  # with none at all, the executor says so

    async def score(self, chunk: Chunk, taken_up: Callable[[], None] = lambda: None) -> None:
        """`taken_up` is called when the turn begins; until then the chunk may grow."""
        overtaking = await self._turn(chunk, may_overtake=not chunk.batch or self._is_quick(chunk))
        taken_up()
        if overtaking:
            await self._score_quickly(chunk)
            if not chunk.open_items():
                return
            await self._turn(chunk, may_overtake=False)
        started_s = self._now()
        try:
            await self._executor.score(chunk)
        finally:
            self._running -= 1
            self._give_turns()
        self._note(chunk, late=self._now() - started_s > QUICK_S)

    async def _score_quickly(self, chunk: Chunk) -> None:
        try:
            async with asyncio.timeout(QUICK_S) as limit:
                await self._executor.score(chunk)
            self._note(chunk, late=False)
        except TimeoutError:
            if not limit.expired():
                raise
            chunk.ended = chunk.together
            chunk.pace.num_late += 1
            self._note(chunk, late=True)
        finally:
            self._overtaking -= 1
            self._give_turns()

    async def _turn(self, chunk: Chunk, *, may_overtake: bool) -> bool:
        """Wait for a worker; True when it is a spare one."""
        self._give_turns()  # workers may have joined
        if not self.busy:
            self._take()
            return False
        loop = asyncio.get_running_loop()
        waiting = _Waiting(chunk, loop.create_future(), loop.time())
        self._waiting[waiting] = None
        if may_overtake:
            self._overtakers[waiting] = None
        self._give_turns()
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            self._leave(waiting)
            if waiting.turn.cancelled():
                pass
            elif waiting.turn.result():
                self._overtaking -= 1
            else:
                self._running -= 1
            self._give_turns()
            raise

    def _give_turns(self) -> None:
        while self._waiting and not self.busy:
            if self._give(next(iter(self._waiting)), spare=False):
                self._take()
        while self._overtaking < self._executor.spare and (ready := self._ready()):
            self._overtaking += self._give(min(ready, key=self._rank), spare=True)

    def _take(self) -> None:
        self._running += 1
        self._last_turn_s = self._now()

    def _ready(self) -> list[_Waiting]:
        """Those that may overtake now, of the oldest; when none may yet, a timer is set for the first of them."""
        oldest = list(itertools.islice(self._overtakers, LOOKED_AT))
        # Workers that have been held for so long already: nobody has to wait once more to see that.
        limit_s = self._now() - OVERTAKE_AFTER_S
        ready = [waiting for waiting in oldest if min(waiting.since_s, self._last_turn_s) <= limit_s]
        if self._timer is not None:
            self._timer.cancel()
        if oldest and not ready:
            when_s = min(oldest[0].since_s, self._last_turn_s) + OVERTAKE_AFTER_S
            self._timer = asyncio.get_running_loop().call_at(when_s, self._give_turns)
        return ready

    def _rank(self, waiting: _Waiting) -> tuple[int, float]:
        chunk = waiting.chunk
        late = max(self._late.get(spec.name, 0.0) for spec in chunk.rewards)
        return chunk.pace.num_late, len(chunk.samples) * self._costs.of(chunk.rewards) + late * QUICK_S

    def _give(self, waiting: _Waiting, *, spare: bool) -> bool:
        """False when it has just been cancelled."""
        self._leave(waiting)
        if waiting.turn.cancelled():
            return False
        waiting.turn.set_result(spare)
        return True

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting, None)
        self._overtakers.pop(waiting, None)

    def _is_quick(self, chunk: Chunk) -> bool:
        return all(self._late.get(spec.name, 1.0) < MOSTLY for spec in chunk.rewards)

    def _note(self, chunk: Chunk, *, late: bool) -> None:
        for spec in chunk.rewards:
            self._late[spec.name] = 0.7 * self._late.get(spec.name, 0.0) + 0.3 * late

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
