"""A user's own estimator: what it raises, or returns that is no advantage for each total, is an error with its name."""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from ...config.algorithm import AlgorithmConfig
from ...errors import UpdateError
from ...extension import failure_of
from .rewards import Rewards

Advantages = Sequence[Sequence[float | Sequence[float] | None]]


def guarded(function: Callable[..., Any], name: str) -> Callable[[Rewards, AlgorithmConfig], Advantages]:
    """`function`, with an UpdateError for whatever it raises, for another shape than that of the totals, and for a
    number that is not finite: it would be blamed on the loss."""

    @wraps(function)
    def call(rewards: Rewards, algorithm: AlgorithmConfig) -> Advantages:
        try:
            found = [list(group) for group in function(rewards, algorithm)]
        except Exception as error:
            raise UpdateError(f"algorithm.advantage_estimator {failure_of(name, error)}") from error
        shape, wanted = [len(group) for group in found], [len(group) for group in rewards.totals]
        if shape != wanted:
            raise UpdateError(
                f"algorithm.advantage_estimator {name} returned {sum(shape)} advantages in {len(shape)} groups for "
                f"{sum(wanted)} totals in {len(wanted)}",
                hint="return one for each total, in the shape of the totals, None for a total that is None",
            )
        pairs = [pair for pairs in map(zip, found, rewards.totals) for pair in pairs]
        bad = [one for one, total in pairs if total is not None and not _is_advantage(one)]
        if bad:
            raise UpdateError(
                f"algorithm.advantage_estimator {name} returned {len(bad)} advantages that are no finite numbers, such "
                f"as {bad[0]!r:.60}",
                hint="return a finite number for each total, None for a total that is None",
            )
        return found

    return call


def _is_advantage(given: Any) -> bool:
    """Whether it is none, a finite number, or a list of one for each turn, at which `turn_advantages.py` looks."""
    if given is None or (isinstance(given, Sequence) and not isinstance(given, str)):
        return True
    try:
        return math.isfinite(given)
    except TypeError:
        return False
