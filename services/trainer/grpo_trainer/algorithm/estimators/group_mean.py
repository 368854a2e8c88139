"""GRPO's advantage: how much better an episode is than the others of its group.

    A_i = (r_i − mean of the group) / (s + 1e-4)

s is the standard deviation of the group (`scale_rewards: group`), of the whole batch (`batch`), or the division is
left out (`none`). Group scaling is DeepSeekMath's (arXiv 2402.03300, section 4.1.2), `none` Dr. GRPO's (2503.20783).
Standard deviations are unbiased (n − 1), as in TRL's GRPOTrainer, whose advantages these are.
"""

import math
from collections.abc import Sequence

from ...config.algorithm import AlgorithmConfig
from ..spread import has_spread

STD_EPSILON = 1e-4
"""Added to the standard deviation, in units of the reward: a group of equal rewards gets advantages 0."""


def group_mean(
    rewards: Sequence[Sequence[float | None]], algorithm: AlgorithmConfig
) -> tuple[list[list[float | None]], dict[str, float]]:
    """Advantages in the shape of `rewards`, and metrics about the rewards.

    A reward of None is never 0: the episode has no score, gets advantage None, and is in no mean and no standard
    deviation. In a group with a single score that score is its own mean: advantage 0, as when all scores are equal.
    A standard deviation of fewer than two scores is 0. A group without scores gets None throughout.

    Metrics, under TRL's names: `reward` and `reward_std` over all scored episodes, `frac_reward_zero_std` as the share
    of scored episodes in groups without spread (they teach nothing). A batch without scores has no metrics.
    """
    scored = [[reward for reward in group if reward is not None] for group in rewards]
    everything = [reward for group in scored for reward in group]
    std_of_batch = _std(everything)
    advantages: list[list[float | None]] = []
    without_spread = 0
    for group, scores in zip(rewards, scored, strict=True):
        mean, std_of_group = _mean(scores), _std(scores)
        if not has_spread(scores):
            without_spread += len(scores)
        divisors = {"group": std_of_group + STD_EPSILON, "batch": std_of_batch + STD_EPSILON, "none": 1.0}
        divisor = divisors[algorithm.scale_rewards]
        advantages.append([None if reward is None else (reward - mean) / divisor for reward in group])
    if not everything:
        return advantages, {}
    return advantages, {
        "reward": _mean(everything),
        "reward_std": std_of_batch,
        "frac_reward_zero_std": without_spread / len(everything),
    }


def _mean(values: list[float]) -> float:
    """Arithmetic mean; of equal values exactly that value, which a division may miss; 0 of nothing."""
    if not values:
        return 0.0
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def _std(values: list[float]) -> float:
    """Unbiased standard deviation; 0 for fewer than two values, and exactly 0 for equal ones."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
