"""FIPO: the clipped surrogate, with more weight where the update makes what follows a token more likely.

    l = f · (the loss of `clipped`),    f_t = sg( clip( exp( Σ over k ≥ t of γ^(k−t) · d_k ), 1, 1 + fipo_clip_range ) )

d is log ρ of a single token, and 0 for context, masked tokens and where ρ > delta; the sum goes from t to the end of
the sequence, γ = 2^(−1 / fipo_decay_rate). With `fipo_clip_high_only` false the lower bound is 1 − fipo_clip_range; a
range of 0 or null bounds nothing but the sum, to ±20. Where A < 0 and ρ > fipo_safety_threshold, f is then bounded to
0.8 to 1. arXiv 2603.19835; defaults and metrics are ms-swift's. f is 1 in the first update of a generation batch
without stale tokens: it acts with several updates, or with `max_staleness`.
"""

from typing import Annotated

import torch
from pydantic import Field

from ...config.algorithm import AlgorithmConfig
from ...config.section import Positive
from ..reduction import Tally
from ..sequences import MicroBatch
from .clipped import clipped
from .ratios import importance_ratio
from .reads import reads

SAFE_LOW, SAFE_HIGH = 0.8, 1.0
LARGEST = 20.0
"""Bound of the exponent: an infinite weight times a loss of 0 would be no number."""


@reads(zero_without_advantage=True, level=True)
def fipo(
    logprobs_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    tally: Tally,
    *,
    fipo_decay_rate: Positive = 32.0,
    fipo_clip_range: Annotated[float, Field(ge=0.0)] | None = 0.2,
    fipo_clip_high_only: bool = True,
    fipo_safety_threshold: Positive | None = 4.0,
) -> torch.Tensor:
    """The loss of every token [N]."""
    ratio_N = importance_ratio(logprobs_N, batch, algorithm).detach()
    shift_N = logprobs_N.detach() - batch.old_logprobs_N
    if algorithm.delta is not None:
        shift_N = shift_N.masked_fill(ratio_N > algorithm.delta, 0.0)
    future_N = discounted_future(shift_N, batch, discount=2.0 ** (-1.0 / fipo_decay_rate))
    influence_N = future_N.clamp(-LARGEST, LARGEST).exp()
    if fipo_clip_range:
        influence_N = influence_N.clamp(1.0 if fipo_clip_high_only else 1.0 - fipo_clip_range, 1.0 + fipo_clip_range)
    risky_N = torch.zeros_like(batch.fresh_N)
    if fipo_safety_threshold is not None:
        risky_N = (batch.advantage_N < 0) & (ratio_N > fipo_safety_threshold)
    influence_N = torch.where(risky_N, influence_N.clamp(SAFE_LOW, SAFE_HIGH), influence_N)
    tally.mean("fipo/future_kl_mean", future_N)
    tally.mean("fipo/influence_weight_mean", influence_N)
    tally.mean("fipo/safety_keep_ratio", ~risky_N)
    return influence_N.to(logprobs_N.dtype) * clipped(logprobs_N, batch, algorithm, tally)


def discounted_future(values_N: torch.Tensor, batch: MicroBatch, *, discount: float) -> torch.Tensor:
    """For each token the sum of the values from it to the end of its sequence, each times `discount` to the power of
    its distance in the sequence [N], float64."""
    counts_Q = torch.tensor(batch.trained_Q, dtype=torch.int64, device=values_N.device)
    sequence_N = torch.repeat_interleave(torch.arange(len(counts_Q), device=values_N.device), counts_Q)
    position_N, sums_N = batch.position_N, values_N.double()
    # Each sum covers `reach` trained tokens. The sum that begins `reach` further on doubles that.
    reach = 1
    while reach < max(batch.trained_Q, default=0):
        same_N = sequence_N[:-reach] == sequence_N[reach:]
        distance_N = (position_N[reach:] - position_N[:-reach]).where(same_N, 0)
        further_N = (sums_N[reach:] * discount**distance_N).where(same_N, 0.0)
        sums_N = torch.cat([sums_N[:-reach] + further_N, sums_N[-reach:]])
        reach *= 2
    return sums_N
