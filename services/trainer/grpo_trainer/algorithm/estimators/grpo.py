"""GRPO's advantage: how much better an episode is than the others of its group.

    A_i = (r_i − mean of the group) / (s + 1e-4)

s is the standard deviation of the group (`scale_rewards: group`, the default), of the whole batch (`batch`), or the
division is left out (`none`). Group scaling is DeepSeekMath's (arXiv 2402.03300, section 4.1.2), `none` Dr. GRPO's
(2503.20783). Standard deviations are unbiased (n − 1), as in TRL's GRPOTrainer, whose advantages these are.
"""

from ...config.algorithm import AlgorithmConfig
from .rewards import Rewards
from .statistics import STD_EPSILON, known, mean, std


def grpo(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals.

    A reward of None is never 0: the episode has no score, gets advantage None, and is in no mean and no standard
    deviation. In a group with a single score that score is its own mean: advantage 0, as when all scores are equal.
    A standard deviation of fewer than two scores is 0. A group without scores gets None throughout.
    """
    scale = algorithm.scale_rewards or "group"
    std_of_batch = std([reward for group in rewards.totals for reward in known(group)])
    advantages: list[list[float | None]] = []
    for group in rewards.totals:
        scores = known(group)
        center = mean(scores)
        divisor = {"group": std(scores) + STD_EPSILON, "batch": std_of_batch + STD_EPSILON, "none": 1.0}[scale]
        advantages.append([None if reward is None else (reward - center) / divisor for reward in group])
    return advantages
