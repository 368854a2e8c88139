"""REINFORCE++: the advantage is normalised over the whole batch, not within a group (arXiv 2501.03262).

    reinforce_plus_plus            A_i = (r_i − mean of the batch) / (std of the batch + 1e-4)
    reinforce_plus_plus_baseline   d_i = r_i − mean of the group,   A_i = d_i / (std of d over the batch + 1e-4)

The first is the paper's general form, which needs no groups; a group without spread still has an advantage. The second
is its form for several completions of a prompt, and what ms-swift calls `reinforce_plus_plus`. The mean of d over the
batch is 0 by construction, so none is subtracted. Standard deviations are unbiased.

Left out on purpose: OpenRLHF and verl weigh an episode by its tokens in mean and deviation; here an episode counts
once, as in ms-swift. The paper's KL in the reward is `kl_in_reward`.
"""

from ...config.algorithm import AlgorithmConfig
from .rewards import Rewards
from .statistics import STD_EPSILON, known, mean, std


def reinforce_plus_plus(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None, which is in no mean and no deviation."""
    everything = [reward for group in rewards.totals for reward in known(group)]
    center, divisor = mean(everything), std(everything) + STD_EPSILON
    return [[None if reward is None else (reward - center) / divisor for reward in group] for group in rewards.totals]


def reinforce_plus_plus_baseline(rewards: Rewards, algorithm: AlgorithmConfig) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None. A single score in a group: advantage 0."""
    differences: list[list[float | None]] = []
    for group in rewards.totals:
        center = mean(known(group))
        differences.append([None if reward is None else reward - center for reward in group])
    divisor = std([difference for group in differences for difference in known(group)]) + STD_EPSILON
    return [[None if difference is None else difference / divisor for difference in group] for group in differences]
