"""Statistics of scores, in which null is never 0: what has no score is in none, and those of nothing are None."""

import math
from collections.abc import Iterable

from grpo_proto import RewardScore

from .sequences import Group

CORRECT_SCORE = 1.0
"""A completion is correct when the accuracy reward gives it at least this."""


def is_correct(score: RewardScore | None) -> bool | None:
    """Whether the accuracy reward's score of a completion means correct; None without a score."""
    return None if score is None or score.score is None else score.score >= CORRECT_SCORE


def accuracy(groups: Iterable[Group]) -> float | None:
    """Share of correct completions among those that the accuracy reward could score; None when it scored none."""
    found = [episode.correct for group in groups for episode in group.episodes]
    return mean(float(correct) for correct in found if correct is not None)


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean; None when there are no values."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


def standard_deviation(values: Iterable[float]) -> float | None:
    """Standard deviation of a sample: the sum of squares is divided by n - 1. None for fewer than two values."""
    numbers = list(values)
    if len(numbers) < 2:
        return None
    center = math.fsum(numbers) / len(numbers)
    return math.sqrt(math.fsum((number - center) ** 2 for number in numbers) / (len(numbers) - 1))
