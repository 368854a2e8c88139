"""CISPO: REINFORCE whose importance ratio is bounded and has no gradient, so that no token loses its own.

    l = −sg( min(ρ, epsilon_high) ) · A · log π

MiniMax-M1 (arXiv 2506.13585). As in TRL `epsilon_high` is the bound itself, not its distance from 1; the
preset sets 5. Left out on purpose: a lower bound, which the paper does not use either.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .ratios import importance_ratio, mean_by_episode
from .reads import reads


@reads(zero_without_advantage=True, level=True, by_token=True)
def cispo(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]."""
    ratio_N = importance_ratio(logprobs_N, batch, algorithm).detach()
    bounded_N = ((ratio_N > algorithm.upper_epsilon) & (batch.advantage_N > 0)).double()
    by_token = algorithm.importance_sampling_level == "token"
    tally.mean("cispo_clip_ratio", bounded_N if by_token else mean_by_episode(bounded_N, batch))
    return -ratio_N.clamp(max=algorithm.upper_epsilon) * batch.advantage_N * logprobs_N
