"""Mixture: which dataset prompt number `position` of the run is from, and which prompt of that dataset it is.

After any N prompts, the count of each of n datasets differs from ratio · N by 1 − 1 / (2n − 2) at most, so by less than
one. That is Tijdeman's solution of the chairman assignment problem (Discrete Mathematics 32, 1980): among the datasets
that a further prompt keeps within the bound, choose the one whose next prompt is due soonest. Choosing the greatest
remainder would exceed the bound with many datasets.

The ratios become whole numbers over a common denominator, after which the sequence repeats. Nothing is rounded, so the
dataset of a position is the same on every machine.
"""

import math
from array import array
from collections.abc import Sequence
from fractions import Fraction


class RatioSchedule:
    """A function of the position alone; what it has computed once is only kept."""

    def __init__(self, ratios: Sequence[float]):
        """`ratios` are above 0. They are divided by their sum, which is 1 but for rounding."""
        written = [Fraction(str(ratio)) for ratio in ratios]
        shares = [share / sum(written) for share in written]
        self.period = math.lcm(*(share.denominator for share in shares))
        self.per_period = [int(share * self.period) for share in shares]
        self._dataset_at = array("H")
        self._place_at = array("I")
        self._counts = [0] * len(shares)

    def at(self, position: int) -> tuple[int, int]:
        """The number of the dataset at `position`, from 0, and how many prompts of that dataset come before."""
        periods, inside = divmod(position, self.period)
        while len(self._dataset_at) <= inside:
            self._extend()
        dataset = self._dataset_at[inside]
        return dataset, periods * self.per_period[dataset] + self._place_at[inside]

    def _extend(self) -> None:
        """Choose the dataset of one more position. Times `period`, so that all numbers are whole."""
        count, period = 1 + len(self._dataset_at), self.period
        bound = 2 * max(len(self.per_period), 2) - 2
        chosen, soonest = 0, None
        for dataset, share in enumerate(self.per_period):
            lacking = bound * (share * count - self._counts[dataset] * period)
            if lacking >= period:
                latest = ((bound - 1) * period - lacking) // (bound * share)
                if soonest is None or latest < soonest:
                    chosen, soonest = dataset, latest
        self._dataset_at.append(chosen)
        self._place_at.append(self._counts[chosen])
        self._counts[chosen] += 1
