"""Advantage estimators, one small file each: rewards of groups → advantages of their episodes.

An estimator takes the rewards of the generation batch, group by group, None for an episode without a score, and the
settings of the algorithm. It returns advantages in the same shape, None where the reward is, and metrics about the
rewards. A user's own is `FILE.py:NAME` in `algorithm.advantage_estimator`.
"""

from collections.abc import Callable, Sequence

from ...config.algorithm import AlgorithmConfig
from ..extension import named
from .group_mean import group_mean

Rewards = Sequence[Sequence[float | None]]
Advantages = list[list[float | None]]
Estimator = Callable[[Rewards, AlgorithmConfig], tuple[Advantages, dict[str, float]]]

ESTIMATORS: dict[str, Estimator] = {"grpo": group_mean}


def estimator_of(algorithm: AlgorithmConfig) -> Estimator:
    """Look up the estimator that the run file names. Raises UsageError for an unknown name."""
    return named(algorithm.advantage_estimator, ESTIMATORS, setting="algorithm.advantage_estimator")
