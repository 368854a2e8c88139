"""GDPO: each reward is normalised by itself, so that the one with the widest scale does not drown the others.

    z_ik = (r_ik − mean of reward k in the group) / (its std in the group + 1e-4)
    s_i  = Σ_k weight_k · z_ik
    A_i  = (s_i − mean of s over the batch) / (std of s over the batch + 1e-4)

arXiv 2601.05242; TRL's `multi_objective_aggregation: normalize_then_sum`, whose advantages these are, and ms-swift's
`scale_rewards: gdpo` (which adds 1e-8). A reward that could not judge an episode (`unscorable`) adds nothing to its sum
and is in none of the statistics of that reward. Standard deviations are unbiased.
"""

from ...config.algorithm import AlgorithmConfig
from .rewards import Rewards, Scores
from .statistics import STD_EPSILON, known, mean, std


def gdpo(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None; such an episode is in no statistic."""
    sums: list[list[float | None]] = [[None if total is None else 0.0 for total in group] for group in rewards.totals]
    for name, weight in rewards.weights.items():
        if weight:
            _add_normalised(sums, rewards.by_name[name], weight)
    everything = [value for group in sums for value in known(group)]
    center, divisor = mean(everything), std(everything) + STD_EPSILON
    return [[None if value is None else (value - center) / divisor for value in group] for group in sums]


def _add_normalised(sums: list[list[float | None]], scores: Scores, weight: float) -> None:
    """Add weight · z of one reward to the episodes that have a sum and this reward."""
    for group, of_group in zip(sums, scores, strict=True):
        taking_part = [score if value is not None else None for value, score in zip(group, of_group, strict=True)]
        center, divisor = mean(known(taking_part)), std(known(taking_part)) + STD_EPSILON
        for i, (value, score) in enumerate(zip(group, taking_part, strict=True)):
            if value is not None and score is not None:
                group[i] = value + weight * (score - center) / divisor
