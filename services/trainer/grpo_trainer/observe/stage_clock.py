"""Seconds per stage, of each step and of the whole run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

STAGES = ("wait", "score", "prepare", "train", "push", "eval", "save")
"""wait: for samples. score: for rewards, as far as sampling did not hide it. prepare: batching and logprobs. train:
loss, backward, optimizer. push: new weights to the rollout servers. eval: held-out evaluation. save: checkpoints."""

OTHER = "other"
"""Time outside all stages, and in those that are in no chart, such as `callbacks`."""

BETWEEN_STAGES = "between stages"
"""The argument of `on_stage` when no stage is open."""


def seconds_by_stage(numbers: Mapping[str, float]) -> dict[str, float]:
    """A line of metrics.jsonl → seconds of every stage and of `OTHER`, so that steps can be stacked.

    Empty for a line without times. A stage that is not in `STAGES` counts as `OTHER`.
    """
    named = {
        name.removeprefix("time/").removesuffix("_s"): value
        for name, value in numbers.items()
        if name.startswith("time/") and name.endswith("_s")
    }
    if not named and "step_time" not in numbers:
        return {}
    known = {stage: named.get(stage, 0.0) for stage in STAGES}
    whole = numbers.get("step_time", sum(named.values()))
    return {**known, OTHER: max(0.0, whole - sum(known.values()))}


class StageClock:
    """Measure stages, in the loop's thread alone.

    Stages may be nested: a second counts for the innermost stage, so that the stages of a step never add up to more
    than the step. Time outside every stage is the difference between `step_time` and their sum.
    """

    def __init__(
        self,
        *,
        earlier_totals: Mapping[str, float] | None = None,
        on_stage: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        """`earlier_totals`: seconds per stage before the resume. `on_stage` gets the name of each stage."""
        self._now, self._on_stage = now, on_stage
        self._seconds: dict[str, float] = {}
        self._earlier = dict(earlier_totals or {})
        self._totals: dict[str, float] = dict(self._earlier)
        self._open: list[str] = []
        self._since = self._step_started = now()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside as `name`, also when it ends with an error."""
        self._charge()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        self._tell()
        try:
            yield
        finally:
            self._charge()
            self._open.pop()
            self._tell()

    def move(self, seconds: float, *, origin: str, to: str) -> None:
        """Move `seconds` from `origin` to `to`: for waits whose parts are known only afterwards."""
        moved = min(seconds, self._seconds.get(origin, 0.0))
        self._seconds[origin] = self._seconds.get(origin, 0.0) - moved
        self._seconds[to] = self._seconds.get(to, 0.0) + moved

    def end_step(self) -> dict[str, float]:
        """Return `step_time` and `time/<stage>_s`, and begin the next step. Raises RuntimeError inside a stage."""
        if self._open:
            raise RuntimeError(f"the step ends inside stage {self._open[-1]}")
        now = self._now()
        metrics = {"step_time": now - self._step_started}
        metrics |= {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        self._totals = self.totals()
        self._seconds = {}
        self._step_started = now
        return metrics

    def totals(self) -> dict[str, float]:
        """Seconds per stage of the run so far, the current step included."""
        totals = dict(self._totals)
        for name, seconds in self._seconds.items():
            totals[name] = totals.get(name, 0.0) + seconds
        return totals

    def own_totals(self) -> dict[str, float]:
        """Return the seconds of this process alone, without the run before a resume: a counter that never goes back."""
        return {name: seconds - self._earlier.get(name, 0.0) for name, seconds in self.totals().items()}

    def _charge(self) -> None:
        now = self._now()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def _tell(self) -> None:
        if self._on_stage is not None:
            self._on_stage(self._open[-1] if self._open else BETWEEN_STAGES)
