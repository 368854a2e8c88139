"""What a reward that pays an episode says beside it, through TRL's `log_extra` and `log_metric`."""

import math
import statistics
from collections.abc import Sequence
from typing import Any


class RewardLog:
    """Columns and numbers of one reward and one episode. What cannot be kept is named, and costs no score."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        self._numbers: dict[str, list[float]] = {}
        self._left_out: list[str] = []

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Take a column of TRL's completion log: a list of one, as there is one episode."""
        values = list(values)
        if len(values) != 1:
            raise ValueError(f"log_extra({column!r}) has {len(values)} values for one episode")
        self._columns[str(column)] = _plain(values[0])

    def log_metric(self, name: str, value: float) -> None:
        """Take a number; of several the mean counts."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            self._numbers.setdefault(str(name), []).append(number)
        else:
            self._left_out.append(f"metric {name} left out: it is {value!r:.100}, not a finite number")

    def said(self) -> dict[str, Any]:
        """The fields of a `RewardScore`; without those of which nothing was said."""
        found = {
            "log": self._columns,
            "metrics": {name: statistics.fmean(values) for name, values in self._numbers.items()},
            "detail": "; ".join(self._left_out),
        }
        return {name: value for name, value in found.items() if value}


def _plain(value: Any) -> Any:
    """Python's own numbers and lists for those of NumPy and torch."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value
