"""Whose turn it is at a worker: first come, first served, and a way past those who hold the workers for long.

A program that waits for its ten minutes, or a plugin that takes its time, would otherwise hold up every countdown
behind it. A chunk that has waited for OVERTAKE_AFTER_S, or comes when nobody has been given a worker for so long, may
use a spare one and has to be quick there: what a worker has not scored within QUICK_S is taken away and waits for its
turn. First come chunks of requests that were not late there before. When nobody else wants the spare worker, what was
late may try again, less and less often, since a busy moment of the machine makes anything late. A batch, which may ask
somebody else and pay for it, comes there when its reward is known to be quick, and only once.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..costs import CHUNK_S, Costs
from .base import Chunk, Executor
from .wrapped import WrappedExecutor

OVERTAKE_AFTER_S = 0.1
"""Wait after which a chunk may overtake: longer than most turns take, short against a person's patience."""
QUICK_S = 15 * CHUNK_S
"""A chunk that should take CHUNK_S may take this, on a busy machine."""
NO_WORKER_S = 10 * QUICK_S
"""Time after which a chunk that has to be quick gives back a turn without a worker, such as while one is started."""
TURN_S = QUICK_S / 2
"""Time after which a worker begins no further sample of a chunk, which turned out to be dearer than it should be."""
AGAIN_S = (1.0, 4.0, 16.0, 64.0)
"""How long what was late, once, twice and so on, waits until it may overtake again."""
MOSTLY = 0.5
"""Share of late turns, among the last ones of a reward, from which on it is not quick."""
LOOKED_AT = 32
"""Chunks compared of those that wait longest, and as many of the newest: the best one overtakes."""
LOOK_S = 1.0
"""How often those who wait look for workers that have joined: nobody tells."""


def num_spare(workers: int) -> int:
    """Workers that are kept beside `workers`, for what overtakes."""
    return max(1, workers // 8)


@dataclass(eq=False)
class _Waiting:
    chunk: Chunk
    turn: "asyncio.Future[bool]"
    """Done when it has a turn; True with a spare worker."""
    since_s: float
    """When it first began to wait."""
    num_late: int | None
    """How often it was late at a spare worker; None when it may not go there."""
    again_s: float = 0.0
    """Not at a spare worker before this time."""


class TurnsExecutor(WrappedExecutor):
    """An `Executor` around one that has started and has `workers` and `spare` workers.

    Waits for: a turn (`_Waiting.turn`). Unblocked by: chunks that come back, and a timer when the oldest of those that
    may overtake has waited long enough, or workers have joined.
    """

    def __init__(self, executor: Executor, costs: Costs):
        super().__init__(executor)
        self._costs = costs
        self._running = self._overtaking = 0
        self._overtaken_s = 0.0
        """Time of spare workers that has been used."""
        self._waiting: dict[_Waiting, None] = {}
        self._overtakers: dict[_Waiting, None] = {}
        """Of `_waiting`, those that a spare worker may take for the first time."""
        self._were_late: list[dict[_Waiting, None]] = [{} for _ in AGAIN_S]
        """Those that were late there: once, twice and so on, the oldest first."""
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
        since_s = self._now() if chunk.since_s is None else chunk.since_s
        num_late = 0 if not chunk.batch or self._is_quick(chunk) else None
        chunk.turn_s = TURN_S
        while True:
            spare = await self._turn(_Waiting(chunk, asyncio.get_running_loop().create_future(), since_s, num_late))
            taken_up()
            items = chunk.open_items()
            taken_away = await self._taken_away(chunk, items, spare=spare)
            left = chunk.open_items()
            if not left:
                return
            if not taken_away:
                if chunk.together or len(left) == len(items):
                    return  # the rest is scored alone; or nothing came of it, and nothing would
                if not spare:  # there it was out of its turn, and keeps its place for that
                    since_s = self._now()
            elif chunk.taken_away and self._executor.spare:  # or there was no worker, which is no fault of its
                num_late = None if chunk.batch or num_late is None else num_late + 1

    async def _taken_away(self, chunk: Chunk, items: Sequence[int], *, spare: bool) -> bool:
        """Give it to a worker, a spare one not for long; True when it was taken away from there, or got none.

        Nor a worker for long when the chunk is of several requests: all the others would wait for one that hangs.
        """
        started_s, waits_on = self._now(), False
        chunk.taken_away = False
        chunk.limit_s = QUICK_S if spare or chunk.together else None
        try:
            async with asyncio.timeout(None if chunk.limit_s is None else NO_WORKER_S) as patience:
                await self._executor.score(chunk)
            waits_on = chunk.taken_away
        except TimeoutError:
            if not patience.expired():
                raise
            waits_on = True
        finally:
            chunk.ended = chunk.ended or (waits_on and chunk.together)
            if spare:
                self._overtaking -= 1
                self._overtaken_s += min(self._now() - started_s, QUICK_S)
            else:
                self._running -= 1
            self._note(chunk, late=chunk.taken_away, items=items, took_s=self._now() - started_s)
            self._give_turns()
        return waits_on

    async def _turn(self, waiting: _Waiting) -> bool:
        """Wait for a worker; True when it is a spare one."""
        self._give_turns()  # workers may have joined
        if not self.busy:
            self._take()
            return False
        newest = next(reversed(self._waiting), waiting)
        self._waiting[waiting] = None
        if waiting.since_s < newest.since_s:  # it was late, and has its place among those who waited with it
            self._waiting = dict.fromkeys(sorted(self._waiting, key=lambda one: one.since_s))
        if waiting.num_late == 0:
            self._overtakers[waiting] = None
        elif waiting.num_late is not None and waiting.num_late <= len(AGAIN_S):
            waiting.again_s = self._now() + AGAIN_S[waiting.num_late - 1]
            self._were_late[waiting.num_late - 1][waiting] = None
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
        while self._overtaking < self._executor.spare and (waiting := self._next_overtaker()):
            self._overtaking += self._give(waiting, spare=True)
        self._set_timer()

    def _take(self) -> None:
        self._running += 1
        self._last_turn_s = self._now()

    def _next_overtaker(self) -> _Waiting | None:
        if ready := self._ready():
            return self._chosen(ready)
        oldest = (next(iter(waiting), None) for waiting in self._were_late)
        return next((one for one in oldest if one is not None and one.again_s <= self._now()), None)

    def _ready(self) -> list[_Waiting]:
        """Those that may overtake now for the first time, of the oldest and the newest."""
        now_s = self._now()
        oldest = itertools.islice(self._overtakers, LOOKED_AT)
        newest = itertools.islice(reversed(self._overtakers), LOOKED_AT)
        return [one for one in (*oldest, *newest) if self._overtakes_s(one) <= now_s]

    def _overtakes_s(self, waiting: _Waiting) -> float:
        # Workers that have been held for so long already: nobody has to wait once more to see that.
        return min(waiting.since_s, self._last_turn_s) + OVERTAKE_AFTER_S

    def _set_timer(self) -> None:
        """Set the timer for when somebody may overtake, at the latest after LOOK_S; none when nobody waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        when_s = self._now() + LOOK_S
        if self._overtaking < self._executor.spare and self._overtakers:
            when_s = min(when_s, self._overtakes_s(next(iter(self._overtakers))))
        self._timer = asyncio.get_running_loop().call_at(when_s, self._give_turns)

    def _chosen(self, ready: Sequence[_Waiting]) -> _Waiting:
        """The cheapest, the oldest or the newest of those least often late, by turns: QUICK_S of spare time for each.

        With one rule alone somebody could fill the spare worker for ever: with what looks cheap, with what is old, or
        with what is new.
        """
        least = min(waiting.chunk.pace.num_late for waiting in ready)
        best = [waiting for waiting in ready if waiting.chunk.pace.num_late == least]
        match int(self._overtaken_s / QUICK_S) % 3:
            case 0:
                return min(best, key=lambda waiting: (self._expected_s(waiting), -waiting.since_s))
            case 1:
                return min(best, key=lambda waiting: waiting.since_s)
            case _:
                return max(best, key=lambda waiting: waiting.since_s)

    def _expected_s(self, waiting: _Waiting) -> float:
        chunk = waiting.chunk
        late = max(self._late.get(spec.name, 0.0) for spec in chunk.rewards)
        return len(chunk.samples) * self._costs.of(chunk.rewards) + late * QUICK_S

    def _give(self, waiting: _Waiting, *, spare: bool) -> bool:
        """False when it has just been cancelled."""
        self._leave(waiting)
        if waiting.turn.cancelled():
            return False
        waiting.turn.set_result(spare)
        return True

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting, None)
        for those in (self._overtakers, *self._were_late):
            those.pop(waiting, None)

    def _is_quick(self, chunk: Chunk) -> bool:
        return all(self._late.get(spec.name, 1.0) < MOSTLY for spec in chunk.rewards)

    def _note(self, chunk: Chunk, *, late: bool, items: Sequence[int], took_s: float) -> None:
        """Learn from a turn. A sample whose short `timeout_s` has run out is late, too, and has cost that time."""
        for item in items:
            score = chunk.scores[item]
            if score is not None and score.status == "timeout":
                late = True
                name = chunk.rewards[item % len(chunk.rewards)].name
                chunk.spend({name: min(chunk.timeout_s, QUICK_S)})
        chunk.pace.num_late += late and self._executor.spare > 0
        late = late or (chunk.limit_s is None and took_s > QUICK_S)
        for spec in chunk.rewards:
            self._late[spec.name] = 0.7 * self._late.get(spec.name, 0.0) + 0.3 * late

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
