"""REAL: rewards as labels, in a group a classification of its completions (arXiv 2602.05630).

    A_i = G / τ / (1 + n₊)   where r_i is above the mean of the group
    A_i = −G / τ / (1 + n₋)  elsewhere;   0 throughout a group whose rewards are all equal

G is the number of scored completions of the group, n₊ and n₋ those above its mean and the others. The loss of a group,
log(1 + Σ₊ e^(−s_i / τ)) + log(1 + Σ₋ e^(s_i / τ)), s_i the mean of log(π / π_old) over the tokens of completion i, has
just this gradient, with the surrogate `reinforce` and the normaliser `grpo`, as long as nothing has been learnt since
the completions were sampled: all s_i are 0 then. ms-swift's loss `real` equals it there.
"""

from ...config.algorithm import AlgorithmConfig
from ...config.section import Positive
from .rewards import Rewards
from .statistics import known, mean


def real(rewards: Rewards, algorithm: AlgorithmConfig, tau: Positive = 0.5) -> list[list[float | None]]:
    """Advantages in the shape of the totals, None where a total is None."""
    advantages: list[list[float | None]] = []
    for group in rewards.totals:
        scores = known(group)
        center = mean(scores)
        num_right = sum(score > center for score in scores)
        right = len(scores) / tau / (1 + num_right) if num_right else 0.0
        wrong = -len(scores) / tau / (1 + len(scores) - num_right) if num_right else 0.0
        advantages.append([None if reward is None else right if reward > center else wrong for reward in group])
    return advantages
