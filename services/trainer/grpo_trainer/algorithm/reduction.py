"""Metrics that come out the same however a batch is cut: sums with counts, smallest and largest values.

A mean of means is wrong as soon as micro-batches differ in size, so nothing is divided before all micro-batches of all
ranks are in.
"""

import json
import math
import zlib
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class Tally:
    """Running values by metric name, scalars in float64. Empty vectors are welcome."""

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

    def reduce(self, *, counts: bool = True) -> dict[str, float]:
        """The metrics over all ranks, on every rank; a collective. Means and extremes of nothing are left out.

        `counts`: no other rank has the same values and counts them. A metric counts also where only some ranks recorded
        it. Every rank has recorded something, if only of nothing: its device is that of the exchange.
        """
        if not counts:
            totals, sums = (
                {name: torch.zeros_like(value) for name, value in kind.items()}
                for kind in (self.totals, self.sums_and_counts)
            )
            return Tally(totals, sums, self.smallest, self.largest).reduce()
        kinds = (self.totals, self.sums_and_counts, self.smallest, self.largest)
        devices = (value.device for kind in kinds for value in kind.values())
        device = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        names = _names_on_all_ranks([list(kind) for kind in kinds], device)
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        totals = _over_ranks(self.totals, names[0], dist.ReduceOp.SUM, nothing)
        means = _over_ranks(self.sums_and_counts, names[1], dist.ReduceOp.SUM, nothing.expand(2))
        smallest = _over_ranks(self.smallest, names[2], dist.ReduceOp.MIN, nothing + math.inf)
        largest = _over_ranks(self.largest, names[3], dist.ReduceOp.MAX, nothing - math.inf)
        return {
            **{name: float(value) for name, value in totals.items()},
            **{name: float(value[0] / value[1]) for name, value in means.items() if value[1] > 0},
            **{name: float(value) for name, value in smallest.items() if value != math.inf},
            **{name: float(value) for name, value in largest.items() if value != -math.inf},
        }


def _add(sums: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _over_ranks(
    values: dict[str, torch.Tensor], names: list[str], operation: dist.ReduceOp.RedOpType, nothing: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Reduce `names` over all ranks; this rank has `nothing` of those that are not among its `values`."""
    if not names:
        return {}
    stacked = torch.stack([values.get(name, nothing).to(nothing.device) for name in names])
    if _several_ranks():
        dist.all_reduce(stacked, op=operation)
    return dict(zip(names, stacked.cpu(), strict=True))


def _names_on_all_ranks(names: list[list[str]], device: torch.device) -> list[list[str]]:
    """Return `names`, a list for each kind, with those that only other ranks have; in the same order on every rank.

    The names themselves are exchanged only when their checksums differ.
    """
    if not _several_ranks():
        return names
    text = json.dumps(names).encode()
    own = torch.tensor([len(text), zlib.crc32(text)], device=device)
    least = torch.stack([own, -own])
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    if torch.equal(least[0], -least[1]):
        return names
    longest = -int(least[1][0])
    padded = torch.tensor(list(text.ljust(longest)), dtype=torch.uint8, device=device)
    of_ranks = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, padded)
    read = [json.loads(bytes(part.tolist())) for part in of_ranks]
    return [list(dict.fromkeys(name for of_rank in kind for name in of_rank)) for kind in zip(*read, strict=True)]


def _several_ranks() -> bool:
    return bool(dist.is_initialized()) and dist.get_world_size() > 1
