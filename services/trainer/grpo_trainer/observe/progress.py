"""The progress of a run: a bar on a terminal, a line per step elsewhere."""

import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

from .stage_clock import BETWEEN_STAGES, STAGES

log = logging.getLogger(__name__)

RECENT_STEPS = 20
"""Steps whose mean estimates the time left: evaluation and saving come every few steps."""
_BAR = "step {n_fmt}/{total_fmt} {bar:12} {desc}"


class Progress:
    """The progress of a run with `max_steps` steps, of which `first_step` - 1 are done. Used by the loop's thread."""

    def __init__(self, max_steps: int, *, first_step: int = 1, enabled: bool = True, stream: TextIO | None = None):
        stream = stream or sys.stderr
        self._max_steps, self._enabled = max_steps, enabled
        self._recent_s: deque[float] = deque(maxlen=RECENT_STEPS)
        self._last_line = ""
        self._bar: tqdm[Any] | None = None
        if enabled and _has_columns(stream):
            self._bar = tqdm(
                total=max_steps, initial=first_step - 1, file=stream, bar_format=_BAR, dynamic_ncols=True, leave=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stage(self, name: str) -> None:
        """Show the current stage, on a terminal only: elsewhere a line per step is enough."""
        if self._bar is not None and name != BETWEEN_STAGES:
            self._bar.set_description_str(f"{name:<7}  {self._last_line}", refresh=True)

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step: reward, accuracy, seconds per stage, time left."""
        self._recent_s.append(metrics.get("step_time", 0.0))
        if not self._enabled:
            return
        line = describe_step(metrics, time_left_s=self._time_left_s(step))
        if self._bar is None:
            log.info("step %d/%d  %s", step, self._max_steps, line)
            return
        self._last_line = line
        self._bar.n = step
        self._bar.set_description_str(f"{'':7}  {line}", refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _time_left_s(self, step: int) -> float:
        return (self._max_steps - step) * sum(self._recent_s) / len(self._recent_s)


def describe_step(metrics: Mapping[str, float], *, time_left_s: float) -> str:
    """`reward 0.412  accuracy 0.310  6 min left  4.2 s (wait 2.1 train 1.8)`; unknown values are left out.

    Put details last: a narrow terminal cuts them off.
    """
    parts = [
        f"{label} {metrics[key]:.3f}"
        for label, key in (
            ("reward", "reward"),
            ("accuracy", "accuracy"),
            ("teacher kl", "teacher/kl"),
            ("eval", "eval_accuracy"),
            ("greedy", "eval_greedy"),
        )
        if key in metrics
    ]
    parts.append(f"{readable_duration(time_left_s)} left")
    if "step_time" in metrics:
        stages = [(stage, metrics.get(f"time/{stage}_s", 0.0)) for stage in STAGES]
        shown = " ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages if seconds >= 0.05)
        parts.append(f"{metrics['step_time']:.1f} s" + (f" ({shown})" if shown else ""))
    return "  ".join(parts)


def _has_columns(stream: TextIO) -> bool:
    """Whether `stream` is a terminal with a width. In some containers it has no columns: a bar would be invisible."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except OSError:
        return stream.isatty()


def readable_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
