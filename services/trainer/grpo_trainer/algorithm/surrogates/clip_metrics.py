"""What the clip cut off, under TRL's names."""

import torch

from ..reduction import Tally
from ..sequences import MicroBatch
from .ratios import mean_by_episode


def tally_clipping(
    low_clipped_N: torch.Tensor, high_clipped_N: torch.Tensor, batch: MicroBatch, tally: Tally, *, by_episode: bool
) -> None:
    """Record the shares of tokens, or `by_episode` of episodes, whose gradient the clip cut off.

    The extremes are those of an episode's share.
    """
    low_N, high_N = low_clipped_N.double(), high_clipped_N.double()
    low_E, high_E = mean_by_episode(low_N, batch), mean_by_episode(high_N, batch)
    low, high = (low_E, high_E) if by_episode else (low_N, high_N)
    tally.mean("clip_ratio/low_mean", low)
    tally.mean("clip_ratio/high_mean", high)
    tally.mean("clip_ratio/region_mean", low + high)
    tally.minimum("clip_ratio/low_min", low_E)
    tally.maximum("clip_ratio/high_max", high_E)
