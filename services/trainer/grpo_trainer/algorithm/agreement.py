"""How far two computations of the same logprobs may be from each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rule:
    """Their mean difference, or a quantile of it, is at most `bound`."""

    bound: float
    quantile: float | None = None

    def measure(self, differences: Sequence[float]) -> float:
        if self.quantile is None:
            return sum(differences) / max(len(differences), 1)
        return float(torch.tensor(differences, dtype=torch.float64).quantile(self.quantile)) if differences else 0.0

    def __str__(self) -> str:
        return "on average" if self.quantile is None else f"at the {self.quantile:.0%} quantile"
