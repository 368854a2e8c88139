"""Decoupled PPO for stale samples: the clip is around the proximal policy, not the one that sampled.

    l = −min( ρ · A,  clip(ρ, 1 − epsilon, 1 + epsilon_high) · A ),   ρ = π / π_prox

π_prox is the trainer's own policy at the start of the generation batch, for stale tokens too; the correction c =
π_prox / μ (`correction.py`) weighs for the policy μ that sampled (AReaL, arXiv 2505.24298; its cap of c is
`importance_sampling_clip_max`). Without stale tokens it is `clipped`.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .clipped import clipped
from .reads import reads


@reads(zero_without_advantage=True, level=True, proximal=True, by_token=True)
def decoupled(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]: that of `clipped`, where π_old is the proximal policy by what is declared."""
    return clipped(logprobs_N, batch, algorithm, tally)
