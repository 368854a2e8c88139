"""GMPO: the geometric mean of an episode's clipped token ratios, which single large ratios hardly move.

    l = −exp( mean over the episode of clip'(log ρ) ) · A

clip' bounds log ρ at epsilon_high where A > 0 and at −epsilon elsewhere: the clip is in log space, so that the ratio
stays within exp(−epsilon) to exp(epsilon_high); the preset sets 0.4. arXiv 2507.20673, and TRL's
experimental GMPOTrainer. An advantage is that of the episode. With `top_entropy_quantile` below 1 the mean is over the
tokens that it keeps, as in TRL.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .clip_metrics import tally_clipping
from .ratios import mean_by_episode
from .reads import reads


@reads(zero_without_advantage=True, masks_entropy=True, episode_advantage=True)
def gmpo(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]."""
    advantage_N = batch.advantage_N
    log_ratio_N = logprobs_N - batch.old_logprobs_N
    low, high = -algorithm.epsilon, algorithm.upper_epsilon
    clipped_N = torch.where(advantage_N > 0, log_ratio_N.clamp(max=high), log_ratio_N.clamp(min=low))
    tally_clipping(
        (log_ratio_N < low) & (advantage_N < 0),
        (log_ratio_N > high) & (advantage_N > 0),
        *(batch, tally),
        by_episode=False,
    )
    kept_N = batch.high_entropy_N if algorithm.masks_low_entropy else None
    return -torch.exp(mean_by_episode(clipped_N, batch, kept_N))[batch.episode_N] * advantage_N
