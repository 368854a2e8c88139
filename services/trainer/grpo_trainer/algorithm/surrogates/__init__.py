"""Surrogates, one small file each: the loss of each trained token, before its weight.

A surrogate takes the policy's logprobs, which carry the gradient, the micro-batch, the settings of the algorithm and a
tally for its metrics, and returns the loss of every token. `batch.old_logprobs_N` is filled in by then. Every rank
records the same metrics, also for an empty micro-batch. A user's own is `FILE.py:NAME` in `algorithm.surrogate`.

A surrogate whose loss and gradient are 0 wherever the advantage is 0 declares it with the attribute
`zero_without_advantage = True`: samples of advantage 0 are then not computed.
"""

from collections.abc import Callable

import torch

from ...config.algorithm import AlgorithmConfig
from ..extension import named
from ..reduction import Tally
from ..sequences import MicroBatch
from .clipped import clipped

Surrogate = Callable[[torch.Tensor, MicroBatch, AlgorithmConfig, Tally], torch.Tensor]

SURROGATES: dict[str, Surrogate] = {"clipped": clipped}


def surrogate_of(algorithm: AlgorithmConfig) -> Surrogate:
    """Look up the surrogate that the run file names. Raises UsageError for an unknown name."""
    return named(algorithm.surrogate_name, SURROGATES, setting="algorithm.surrogate")
