"""REINFORCE: the policy gradient itself.

    l = −A · log π

No ratio to an older policy: for one update on fresh samples, where its gradient is that of `clipped`. In later updates
of a batch, and for stale samples, it is biased; the mismatch correction still weighs by π_old / μ. Williams (1992).
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .reads import reads


@reads(zero_without_advantage=True, old=False, by_token=True)
def reinforce(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N]."""
    return -batch.advantage_N * logprobs_N
