"""The numbers in a comparison of two scorings."""

import math
from collections.abc import Sequence

STD_EPSILON = 1e-4
"""What the trainer adds to the standard deviation of a group."""
CONSTANT_STD = 1e-8
"""Groups with less spread count as constant: they teach nothing."""


def mean(values: Sequence[float]) -> float | None:
    """None of nothing; of equal values exactly that value."""
    if not values:
        return None
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Unbiased standard deviation (n − 1), as the trainer has it; 0 for fewer than two values."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank). Raises on no values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def average_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of their ranks: 10, 20, 20, 30 → 1, 2.5, 2.5, 4."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = (start + 1 + end) / 2
        start = end
    return ranks


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the average ranks, so ties are allowed. −1 to 1.

    None for fewer than two pairs, and when one side is constant: there is no order to agree with.
    """
    pairs = list(zip(average_ranks(first), average_ranks(second), strict=True))
    middle = (len(pairs) + 1) / 2
    spread_first = math.fsum((a - middle) ** 2 for a, _ in pairs)
    spread_second = math.fsum((b - middle) ** 2 for _, b in pairs)
    if not spread_first or not spread_second:
        return None
    together = math.fsum((a - middle) * (b - middle) for a, b in pairs)
    return max(-1.0, min(1.0, together / math.sqrt(spread_first * spread_second)))


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """(r − mean) / (std + 1e-4) within one group, as the trainer computes it with `scale_rewards: group`.

    None stays None and takes no part. Source: GRPO, DeepSeekMath (arXiv 2402.03300), section 4.1.2.
    """
    scored = [reward for reward in rewards if reward is not None]
    middle, divisor = mean(scored) or 0.0, std(scored) + STD_EPSILON
    return [None if reward is None else (reward - middle) / divisor for reward in rewards]


def is_constant(rewards: Sequence[float | None]) -> bool:
    return std([reward for reward in rewards if reward is not None]) <= CONSTANT_STD
