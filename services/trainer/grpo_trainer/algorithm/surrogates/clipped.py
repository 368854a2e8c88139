"""The clipped surrogate of PPO and GRPO.

For token n with ratio ρ = π(n) / π_old(n) and advantage A, as in TRL's GRPOTrainer:

    l = −min( min(ρ, delta) · A,  clip(ρ, 1 − epsilon, 1 + epsilon_high) · A )

`delta` bounds the ratio where the clip leaves it free (A < 0). Left out on purpose: ratios of whole episodes (GSPO).
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .declarations import zero_without_advantage


@zero_without_advantage
def clipped(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]."""
    advantage_N = batch.advantage_N
    ratio_N = torch.exp(logprobs_N - batch.old_logprobs_N)
    low, high = 1.0 - algorithm.epsilon, 1.0 + algorithm.upper_epsilon
    bounded_N = ratio_N if algorithm.delta is None else ratio_N.clamp(max=algorithm.delta)
    _tally_clipping(bounded_N, low, high, batch, tally)
    return -torch.minimum(bounded_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)


def _tally_clipping(ratio_N: torch.Tensor, low: float, high: float, batch: MicroBatch, tally: Tally) -> None:
    """Shares of tokens whose gradient the clip cut off; the extremes are those of an episode's share."""
    low_clipped_N = ((ratio_N < low) & (batch.advantage_N < 0)).double()
    high_clipped_N = ((ratio_N > high) & (batch.advantage_N > 0)).double()
    tally.mean("clip_ratio/low_mean", low_clipped_N)
    tally.mean("clip_ratio/high_mean", high_clipped_N)
    tally.mean("clip_ratio/region_mean", low_clipped_N + high_clipped_N)
    tally.minimum("clip_ratio/low_min", _mean_by_episode(low_clipped_N, batch))
    tally.maximum("clip_ratio/high_max", _mean_by_episode(high_clipped_N, batch))


def _mean_by_episode(values_N: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """One mean for each episode [E]."""
    sums_E = values_N.new_zeros(batch.num_episodes).index_add(0, batch.episode_N, values_N)
    counts_E = values_N.new_zeros(batch.num_episodes).index_add(0, batch.episode_N, torch.ones_like(values_N))
    return (sums_E / counts_E)[counts_E > 0]
