"""Scoring many rows: requests as large as they are quick, word of how far it is, and an end when nothing comes.

A request that takes long would say nothing for minutes, and reach its own deadline before all of its samples are
scored. So requests begin small, grow while they are quick and shrink when they are slow. A reward for which nothing
but time-outs came is given up: each of them costs as long as a score may take.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from grpo_proto import RewardSpec, ScoreRequest, ScoreResult

from .options import CommandFailed
from .rows import Row
from .scorers import Scorer

BATCH = 256
"""Most samples of a request, more when what belongs together is larger."""
AT_ONCE = 2
"""Requests under way, so that workers need not wait for the next one."""
MAX_DEADLINE_S = 600.0
"""The longest that a server takes unless it was started with another `--max-timeout-s`."""
QUICK_S, SLOW_S = 1.0, 10.0
"""Requests grow below, and shrink above."""
GROWTH = 4
GIVE_UP_AFTER = 8
"""Samples, or groups for a reward that compares, of which none had a score in time."""
WORD_EVERY_S = 10.0


def cut(rows: Sequence[Row], *, compared: bool) -> list[list[list[int]]]:
    """Positions of the rows that share a request, by step: each alone, or with `compared` whole groups.

    With `compared` the rows without a group belong together: a reward of `completions` has to see all of them.
    """
    steps: dict[int | None, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, row in enumerate(rows):
        steps[row.step][row.group if compared else position].append(position)
    return [list(units.values()) for units in steps.values()]


class _GivenUpError(Exception):
    """A reward was late for each of the `num_tried` samples that it got."""

    def __init__(self, reward: str, num_tried: int):
        self.reward, self.num_tried = reward, num_tried


class Rescoring:
    """The rows of a file on their way through a scorer. `results` has what came so far, in the order of the rows."""

    def __init__(
        self,
        scorer: Scorer,
        specs: Sequence[RewardSpec],
        rows: Sequence[Row],
        *,
        compared: bool,
        timeout_s: float,
        gives_up: bool,
        say: Callable[[str], None],
    ):
        self.results: list[ScoreResult | None] = [None] * len(rows)
        self._scorer, self._specs, self._rows = scorer, specs, rows
        self._timeout_s, self._gives_up, self._say = timeout_s, gives_up, say
        self._steps = [units[::-1] for units in cut(rows, compared=compared)][::-1]
        self._least = max(GIVE_UP_AFTER, scorer.workers)
        self._size = self._least
        self._late: Counter[str] = Counter()
        """Reward → units without a score in time."""
        self._units = self._num_scored = self._num_late = 0

    async def run(self) -> list[ScoreResult]:
        """One result for each row, in their order. Raises ConfigError and CommandFailed."""
        word = asyncio.create_task(self._tell())
        try:
            await self._next()
            async with asyncio.TaskGroup() as lanes:
                for _ in range(AT_ONCE):
                    lanes.create_task(self._lane())
        except ExceptionGroup as errors:
            # The last one: another request may have come back in the same moment, and its samples count.
            raise self._told(errors.exceptions[-1]) from None
        except _GivenUpError as error:
            raise self._told(error) from None
        finally:
            word.cancel()
        return [result for result in self.results if result is not None]

    async def _lane(self) -> None:
        while self._steps:
            await self._next()

    async def _next(self) -> None:
        if not (units := self._take()):
            return
        positions = [position for unit in units for position in unit]
        started = time.monotonic()
        response = await self._scorer.score(
            ScoreRequest(
                rewards=list(self._specs),
                samples=[self._rows[position].sample for position in positions],
                step=self._rows[positions[0]].step,
                timeout_s=self._timeout_s,
                deadline_s=MAX_DEADLINE_S,
            )
        )
        took_s, late_before = time.monotonic() - started, self._num_late
        for position, result in zip(positions, response.results, strict=True):
            self.results[position] = result
        self._count(units)
        if took_s > SLOW_S:
            self._size = max(self._size // 2, self._least)
        elif took_s < QUICK_S and self._num_late == late_before:
            self._size = min(GROWTH * self._size, max(BATCH, self._least))

    def _take(self) -> list[list[int]]:
        """As many units of one step as a request may have now, at least one."""
        if not self._steps:
            return []
        waiting, size = self._steps[-1], 0
        units: list[list[int]] = []
        while waiting and (not units or size + len(waiting[-1]) <= self._size):
            units.append(waiting.pop())
            size += len(units[-1])
        if not waiting:
            self._steps.pop()
        return units

    def _count(self, units: Sequence[Sequence[int]]) -> None:
        """Raises _GivenUpError when a reward was late for all that it got."""
        self._units += len(units)
        for unit in units:
            results = [result for position in unit if (result := self.results[position]) is not None]
            self._num_scored += len(results)
            for spec in self._specs:
                late = sum(result.rewards[spec.name].status == "timeout" for result in results)
                self._num_late += late
                self._late[spec.name] += late == len(results)
        for name, late in self._late.items():
            if self._gives_up and late == self._units >= GIVE_UP_AFTER and self._num_scored < len(self.results):
                raise _GivenUpError(name, self._num_scored)

    def _told(self, error: Exception) -> Exception:
        """What ended it, for people; what was left out is known when every request has ended."""
        if not isinstance(error, _GivenUpError):
            return error
        return CommandFailed(
            f"{error.reward} had no score within {self._timeout_s:g} s for any of the first {error.num_tried} "
            f"samples; the other {len(self.results) - self._num_scored:,} were left out. --timeout-s gives it longer, "
            f"--keep-going scores them all the same, grpo-reward test {error.reward} looks for what hangs"
        )

    async def _tell(self) -> None:
        """Now and then, how far it is."""
        started = time.monotonic()
        while True:
            await asyncio.sleep(WORD_EVERY_S)
            late = f", {self._num_late:,} time-outs (--timeout-s {self._timeout_s:g})" if self._num_late else ""
            if not self._num_scored:
                late = f"; each may take {self._timeout_s:g} s (--timeout-s)"
            self._say(
                f"{self._num_scored:,} of {len(self.results):,} samples scored after {time.monotonic() - started:.0f} s"
                f"{late}"
            )
