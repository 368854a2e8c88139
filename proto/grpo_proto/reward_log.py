"""Keep what a reward written for TRL says beside its scores, through `log_extra` and `log_metric`."""

import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class RewardLog:
    """Columns and numbers of one reward for `num_samples` samples. False while nothing was said."""

    def __init__(self, num_samples: int):
        self._num_samples = num_samples
        self._columns: dict[str, list[Any]] = {}
        self._metrics: dict[str, list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._columns or self._metrics)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        values = list(values)
        if len(values) != self._num_samples:
            raise ValueError(f"log_extra({column!r}) has {len(values)} values for {self._num_samples} samples")
        self._columns[column] = values

    def log_metric(self, name: str, value: float) -> None:
        self._metrics.setdefault(name, []).append(value)

    def columns_of(self, position: int) -> dict[str, Any]:
        return {column: values[position] for column, values in self._columns.items()}

    @cached_property
    def means(self) -> dict[str, Any]:
        """Mean of every metric, asked for once all is said."""
        return {name: _mean(values) for name, values in self._metrics.items()}


def _mean(values: list[Any]) -> Any:
    """Mean of the values given for one metric; the first that is no number, if there is one, so that it is told."""
    for value in values:
        try:
            float(value)
        except Exception:
            return value
    try:
        return statistics.fmean(map(float, values))
    except (OverflowError, ValueError):  # the sum is beyond all numbers, or has both infinities in it
        return math.nan
