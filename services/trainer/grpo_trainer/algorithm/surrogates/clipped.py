"""The clipped surrogate of PPO and GRPO.

For token n with ratio ρ (`ratios.py`) and advantage A, as in TRL's GRPOTrainer:

    l = −min( min(ρ, delta) · A,  clip(ρ, 1 − epsilon, 1 + epsilon_high) · A )

`delta` bounds the ratio where the clip leaves it free (A < 0): with delta = c > 1 + epsilon it is dual-clip PPO
(arXiv 1912.09729). Sources: arXiv 1707.06347, 2402.03300; clip-higher 2503.14476; ratios of whole
episodes, GSPO, 2507.18071.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .clip_metrics import tally_clipping
from .ratios import importance_ratio
from .reads import reads


@reads(zero_without_advantage=True, level=True, by_token=True)
def clipped(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]."""
    advantage_N = batch.advantage_N
    ratio_N = importance_ratio(logprobs_N, batch, algorithm)
    low, high = 1.0 - algorithm.epsilon, 1.0 + algorithm.upper_epsilon
    bounded_N = ratio_N if algorithm.delta is None else ratio_N.clamp(max=algorithm.delta)
    tally_clipping(
        (bounded_N < low) & (advantage_N < 0),
        (bounded_N > high) & (advantage_N > 0),
        *(batch, tally),
        by_episode=algorithm.importance_sampling_level != "token",
    )
    return -torch.minimum(bounded_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)
