"""metrics.jsonl → curves, read line by line."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .jsonl import read_records
from .run_files import METRICS_FILE
from .stage_clock import seconds_by_stage
from .thinned import Merge, ThinnedSeries

MAX_POINTS = 400


@dataclass
class Curves:
    """All metrics of a run over its steps, each at most `MAX_POINTS` points long."""

    series: dict[str, ThinnedSeries] = field(default_factory=dict)
    stage_seconds: dict[str, ThinnedSeries] = field(default_factory=dict)
    """Stage → seconds, with a value at every step for stacking; `other` is the time outside all stages."""
    stage_totals: dict[str, float] = field(default_factory=dict)
    last_step: int | None = None
    num_tokens: float | None = None

    def get(self, name: str) -> ThinnedSeries | None:
        return self.series.get(name)

    def matching(self, prefix: str, suffix: str) -> dict[str, ThinnedSeries]:
        """Map the text between prefix and suffix to its curve; `rewards/`, `/mean` finds every reward by its name."""
        return {
            name[len(prefix) : len(name) - len(suffix)]: series
            for name, series in self.series.items()
            if name.startswith(prefix) and name.endswith(suffix) and len(name) > len(prefix) + len(suffix)
        }


def read_curves(run_dir: Path) -> Curves:
    """Read the curves of a run; empty when nothing has been written."""
    curves = Curves()
    for record in read_records(run_dir / METRICS_FILE):
        step = record["step"]
        numbers = dict(numbers_of(record))
        curves.last_step = step if curves.last_step is None else max(step, curves.last_step)
        curves.num_tokens = numbers.get("num_tokens", curves.num_tokens)
        for name, value in numbers.items():
            if name not in curves.series:
                curves.series[name] = ThinnedSeries(MAX_POINTS, merge_of(name))
            curves.series[name].add(step, value)
        _add_stages(curves, step, numbers)
    return curves


def numbers_of(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The finite numbers of a record, without its step."""
    for name, value in record.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield name, float(value)


def merge_of(name: str) -> Merge:
    """How points merge: extremes stay extremes, and a spike of the gradient must not be averaged away."""
    if name.endswith(("max", "/max_length", "/max_terminated_length")) or name == "grad_norm":
        return "max"
    return "min" if name.endswith(("min", "/min_length", "/min_terminated_length")) else "mean"


def _add_stages(curves: Curves, step: int, numbers: Mapping[str, float]) -> None:
    for stage, value in seconds_by_stage(numbers).items():
        curves.stage_totals[stage] = curves.stage_totals.get(stage, 0.0) + value
        if stage not in curves.stage_seconds:
            curves.stage_seconds[stage] = ThinnedSeries(MAX_POINTS)
        curves.stage_seconds[stage].add(step, value)
