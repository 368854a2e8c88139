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
            found = function(rewards, algorithm)
            shape = [len(group) for group in found]
            numbers = [float(one) for group in found for one in group if one is not None and not _is_list(one)]
        except Exception as error:
            raise UpdateError(f"algorithm.advantage_estimator {failure_of(name, error)}") from error
        wanted = [len(group) for group in rewards.totals]
        if shape != wanted:
            raise UpdateError(
                f"algorithm.advantage_estimator {name} returned {sum(shape)} advantages in {len(shape)} groups for "
                f"{sum(wanted)} totals in {len(wanted)}",
                hint="return one for each total, in the shape of the totals, None for a total that is None",
            )
        if bad := [number for number in numbers if not math.isfinite(number)]:
            raise UpdateError(
                f"algorithm.advantage_estimator {name} returned {len(bad)} advantages that are not finite, such as "
                f"{bad[0]}",
                hint="return a finite number for each total, None for a total that is None",
            )
        return found  # type: ignore[no-any-return]

    return call


def _is_list(advantage: Any) -> bool:
    """Whether each turn has one of its own; `turn_advantages.py` looks at those."""
    return isinstance(advantage, Sequence) and not isinstance(advantage, str)
