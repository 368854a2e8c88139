"""MaxRL: divide by the group's mean instead of its deviation, so that rare successes weigh most (arXiv 2602.02710).

    A_i = (r_i − mean of the group) / mean of the group;   0 throughout a group whose mean is 0

For rewards of 0 and 1 the mean is the share p of successes: a success gets (1 − p) / p, a failure −1. The expected
gradient is then that of log p truncated at the order K, the size of the group, where REINFORCE's is that of p.
"""

from ...config.algorithm import AlgorithmConfig
from ...errors import UsageError
from .rewards import Rewards
from .statistics import known, mean


def maxrl(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None.

    Raises UsageError for a negative total: the mean is no share of successes then, and may turn the sign around.
    """
    advantages: list[list[float | None]] = []
    for group in rewards.totals:
        scores = known(group)
        if scores and min(scores) < 0.0:
            raise UsageError(
                f"algorithm.advantage_estimator maxrl: an episode has the reward {min(scores):g}, and MaxRL divides "
                "by the mean of rewards that are 0 or more",
                hint="use rewards without penalties and weights above 0, or another estimator",
            )
        center = mean(scores)
        advantages.append(
            [None if reward is None else (reward - center) / center if center > 0.0 else 0.0 for reward in group]
        )
    return advantages
