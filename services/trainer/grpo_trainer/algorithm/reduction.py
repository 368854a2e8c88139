"""Metrics that come out the same however a batch is cut: sums with counts, smallest and largest values.

A mean of means is wrong as soon as micro-batches differ in size, so nothing is divided before all micro-batches of all
ranks are in.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class Tally:
    """Running values by metric name, scalars in float64. Every rank records the same names in the same order, also
    when a micro-batch has nothing to record: empty vectors are welcome."""

    totals: dict[str, torch.Tensor] = field(default_factory=dict)
    sums_and_counts: dict[str, torch.Tensor] = field(default_factory=dict)
    smallest: dict[str, torch.Tensor] = field(default_factory=dict)
    largest: dict[str, torch.Tensor] = field(default_factory=dict)

    def total(self, name: str, value: torch.Tensor) -> None:
        """Add to the sum `name`, which is divided by nothing."""
        _add(self.totals, name, value.detach().double())

    def mean(self, name: str, values: torch.Tensor) -> None:
        """Take `values` into the mean `name`."""
        values = values.detach().double()
        _add(self.sums_and_counts, name, torch.stack([values.sum(), torch.ones_like(values).sum()]))

    def minimum(self, name: str, values: torch.Tensor) -> None:
        values = values.detach().double().flatten()
        known = self.smallest.get(name, values.new_tensor(math.inf))
        self.smallest[name] = torch.cat([values, known.reshape(1)]).amin()

    def maximum(self, name: str, values: torch.Tensor) -> None:
        values = values.detach().double().flatten()
        known = self.largest.get(name, values.new_tensor(-math.inf))
        self.largest[name] = torch.cat([values, known.reshape(1)]).amax()

    @property
    def names(self) -> set[str]:
        """Every metric that was recorded, of nothing too."""
        return {*self.totals, *self.sums_and_counts, *self.smallest, *self.largest}

    def merge(self, other: "Tally") -> None:
        """Take in another micro-batch's values."""
        for name, value in other.totals.items():
            _add(self.totals, name, value)
        for name, value in other.sums_and_counts.items():
            _add(self.sums_and_counts, name, value)
        for name, value in other.smallest.items():
            self.minimum(name, value)
        for name, value in other.largest.items():
            self.maximum(name, value)

    def reduce(self) -> dict[str, float]:
        """The metrics over all ranks, on every rank; a collective. Means and extremes of nothing are left out."""
        totals = _over_ranks(self.totals, dist.ReduceOp.SUM)
        means = _over_ranks(self.sums_and_counts, dist.ReduceOp.SUM)
        smallest = _over_ranks(self.smallest, dist.ReduceOp.MIN)
        largest = _over_ranks(self.largest, dist.ReduceOp.MAX)
        return {
            **{name: float(value) for name, value in totals.items()},
            **{name: float(value[0] / value[1]) for name, value in means.items() if value[1] > 0},
            **{name: float(value) for name, value in smallest.items() if value != math.inf},
            **{name: float(value) for name, value in largest.items() if value != -math.inf},
        }


def _add(sums: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _over_ranks(values: dict[str, torch.Tensor], operation: dist.ReduceOp.RedOpType) -> dict[str, torch.Tensor]:
    if not values:
        return {}
    stacked = torch.stack(list(values.values()))
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(stacked, op=operation)
    return dict(zip(values, stacked.cpu(), strict=True))
