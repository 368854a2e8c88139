"""Mean and standard deviation as estimators need them: of few numbers, exact where the numbers are equal."""

import math
from collections.abc import Sequence

from ..spread import has_spread
from .rewards import Scores

STD_EPSILON = 1e-4
"""Added to a standard deviation that divides, in units of the reward: equal rewards get advantages 0. TRL's value."""


def known(values: Sequence[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; of equal values exactly that value, which a division may miss; 0 of nothing."""
    if not values:
        return 0.0
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Unbiased standard deviation (n − 1); 0 for fewer than two values, and exactly 0 for equal ones."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def reward_metrics(totals: Scores) -> dict[str, float]:
    """Metrics of the rewards that an estimator gets, whichever it is, under TRL's names.

    `reward` and `reward_std` are over all scored episodes, `frac_reward_zero_std` is the share of scored episodes in
    groups without spread. Of the totals alone, without a KL in the reward. A batch without scores has no metrics.
    """
    groups = [known(group) for group in totals]
    everything = [score for group in groups for score in group]
    if not everything:
        return {}
    return {
        "reward": mean(everything),
        "reward_std": std(everything),
        "frac_reward_zero_std": sum(len(group) for group in groups if not has_spread(group)) / len(everything),
    }
