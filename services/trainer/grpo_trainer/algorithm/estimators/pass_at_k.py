"""pass@k: only the best episode of a group is rewarded, by how much it is better than the second best.

    A_i = r_i − second best of the group   where r_i is the best,   0 elsewhere;   divided by s + 1e-4

The unbiased gradient of the expected best of K samples, K the size of the group (arXiv 2503.19595). Two
episodes that are both best leave 0 to everybody. s is the group's standard deviation with `scale_rewards: group`; by
default (`none`) nothing is divided, as in the paper.
"""

from ...config.algorithm import AlgorithmConfig
from .rewards import Rewards
from .statistics import STD_EPSILON, known, std


def pass_at_k(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None. A single score has no second: advantage 0."""
    advantages: list[list[float | None]] = []
    for group in rewards.totals:
        scores = sorted(known(group), reverse=True)
        best, second = (scores[0], scores[1]) if len(scores) > 1 else (0.0, 0.0)
        divisor = std(scores) + STD_EPSILON if algorithm.scale_rewards == "group" else 1.0
        gain = (best - second) / divisor
        advantages.append([None if reward is None else gain if gain and reward == best else 0.0 for reward in group])
    return advantages
