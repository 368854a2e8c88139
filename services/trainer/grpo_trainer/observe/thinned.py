"""Curves of any length in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Merge = Literal["mean", "min", "max"]


@dataclass
class _Bucket:
    step_sum: float
    value: float
    count: int


class ThinnedSeries:
    """One curve of at most `max_points` points: beyond that, neighbours are merged.

    `merge` takes the mean of merged values, or the extreme where a spike must stay visible. `per_point` is the number
    of values that a point stands for.
    """

    def __init__(self, max_points: int, merge: Merge = "mean"):
        if max_points < 2:
            raise ValueError("a curve needs two points")
        self.per_point = 1
        self.latest: float | None = None
        """The newest value by itself; the last point may stand for several values."""
        self.latest_step: float | None = None
        self._max_points, self._merge = max_points, merge
        self._buckets: list[_Bucket] = []

    def add(self, step: int, value: float) -> None:
        """Steps come in order."""
        self.latest, self.latest_step = value, step
        if not self._buckets or self._buckets[-1].count >= self.per_point:
            if len(self._buckets) == self._max_points:
                self._halve()
            self._buckets.append(_Bucket(step, value, 1))
        else:
            self._buckets[-1] = self._merged(self._buckets[-1], _Bucket(step, value, 1))

    @property
    def steps(self) -> list[float]:
        """A merged point lies at the mean of its steps."""
        return [bucket.step_sum / bucket.count for bucket in self._buckets]

    @property
    def values(self) -> list[float]:
        return [bucket.value for bucket in self._buckets]

    @property
    def last_count(self) -> int:
        """How many values the last point stands for; 0 when there is none."""
        return self._buckets[-1].count if self._buckets else 0

    @property
    def last_is_partial(self) -> bool:
        """The last point stands for fewer values than the others."""
        return bool(self._buckets) and self._buckets[-1].count < self.per_point

    def __len__(self) -> int:
        return len(self._buckets)

    def _halve(self) -> None:
        old, self.per_point = self._buckets, self.per_point * 2
        pairs = [old[i : i + 2] for i in range(0, len(old), 2)]
        self._buckets = [self._merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]

    def _merged(self, left: _Bucket, right: _Bucket) -> _Bucket:
        count = left.count + right.count
        if self._merge == "mean":
            value = (left.value * left.count + right.value * right.count) / count
        else:
            value = min(left.value, right.value) if self._merge == "min" else max(left.value, right.value)
        return _Bucket(left.step_sum + right.step_sum, value, count)


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and up to `window` - 1 values before it."""
    means, total = [], 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        means.append(total / min(index + 1, window))
    return means
