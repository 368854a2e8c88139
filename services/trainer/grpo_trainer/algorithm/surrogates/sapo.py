"""SAPO: a soft gate in the place of the clip, steeper for tokens that are to become less likely.

    l = −(4 / τ) · σ( τ · (ρ − 1) ) · A,    τ = sapo_temperature_pos where A > 0, else sapo_temperature_neg

Both are parameters. arXiv 2511.20347; the factor 4 / τ makes the gradient at ρ = 1 that of the plain ratio.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ...config.section import Positive
from ..reduction import Tally
from ..sequences import MicroBatch
from .ratios import importance_ratio
from .reads import reads


@reads(zero_without_advantage=True, level=True, by_token=True)
def sapo(
    logprobs_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    tally: Tally,
    *,
    sapo_temperature_pos: Positive = 1.0,
    sapo_temperature_neg: Positive = 1.05,
) -> torch.Tensor:
    """The loss of every token [N]."""
    ratio_N = importance_ratio(logprobs_N, batch, algorithm)
    temperature_N = torch.where(batch.advantage_N > 0, sapo_temperature_pos, sapo_temperature_neg)
    return -4.0 / temperature_N * torch.sigmoid(temperature_N * (ratio_N - 1.0)) * batch.advantage_N
