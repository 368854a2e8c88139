"""RLOO: the mean of the *other* episodes of the group is the baseline (arXiv 2402.14740).

    A_i = r_i − mean of r_j over j ≠ i of the group  =  (r_i − mean of the group) · K / (K − 1)

K is the number of scored episodes of the group. With `scale_rewards: batch` the advantages are divided by their own
standard deviation over the batch + 1e-4: TRL's `normalize_advantages` (RLOOTrainer, whose advantages these are). Their
mean over the batch is 0 by construction, so none is subtracted. Left out on purpose: the paper's KL in the reward is
`kl_in_reward`, for every estimator.
"""

from ...config.algorithm import AlgorithmConfig
from .rewards import Rewards
from .statistics import STD_EPSILON, known, mean, std


def rloo(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None.

    A group with a single score has no baseline: advantage 0, and no part in the standard deviation.
    """
    advantages: list[list[float | None]] = []
    compared: list[float] = []
    for group in rewards.totals:
        scores = known(group)
        center = mean(scores)
        factor = len(scores) / (len(scores) - 1) if len(scores) > 1 else 0.0
        advantages.append([None if reward is None else (reward - center) * factor for reward in group])
        if len(scores) > 1:
            compared += known(advantages[-1])
    if algorithm.scale_rewards != "batch":
        return advantages
    divisor = std(compared) + STD_EPSILON
    return [[None if one is None else one / divisor for one in group] for group in advantages]
