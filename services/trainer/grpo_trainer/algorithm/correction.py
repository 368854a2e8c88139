"""The correction for what the rollout server sampled from: the trainer's over the server's probability, bounded."""

import torch

from ..config.algorithm import AlgorithmConfig
from .reduction import Tally
from .sequences import MicroBatch


def measure_mismatch(batch: MicroBatch, tally: Tally) -> None:
    """Record how far the trainer's and the server's logprobs of the same weights are apart: those of fresh tokens, and
    of them those that follow older tokens in their turn (`weights.kv_cache` keep: sampled on the keys of old weights).

    Nothing of it without `old_logprobs_N`: a later update of a batch, with a loss that reads none.
    """
    if batch.old_logprobs_N is None:
        return
    difference_N = batch.old_logprobs_N - batch.rollout_logprobs_N
    measured_N = ~torch.isnan(difference_N) & batch.fresh_N
    mismatch = difference_N[measured_N].abs()
    tally.mean("sampling/sampling_logp_difference/mean", mismatch)
    tally.maximum("sampling/sampling_logp_difference/max", mismatch)
    mixed = difference_N[measured_N & batch.mixed_N].abs()
    tally.mean("sampling/mixed_logp_difference/mean", mixed)
    tally.maximum("sampling/mixed_logp_difference/max", mixed)


def rollout_correction(batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor | None:
    """c_n = π_old(n) / μ(n), bounded: truncated importance sampling; None when it is switched off.

    `token_*` takes the ratio of each token, `sequence_*` the product over the episode; `*_truncate` cuts at
    `importance_sampling_clip_max`, `*_mask` drops what lies above. Where the server gave no logprob the ratio is 1. The
    ratio of a stale token is 1 too, its old logprob is the server's, unless the surrogate reads the proximal policy.
    `importance_sampling_clip_min` bounds it below in the same way: with `token_mask` that is IcePop (GLM-4.5 and
    Ling 2.0 use 0.5 to 5).
    """
    if not algorithm.importance_sampling_correction:
        return None
    if batch.old_logprobs_N is None:
        raise ValueError("old_logprobs_N is not filled in")
    difference_N = torch.nan_to_num(batch.old_logprobs_N - batch.rollout_logprobs_N, nan=0.0)
    level, kind = algorithm.importance_sampling_mode.split("_")
    if level == "token":
        ratio = torch.exp(difference_N)
    else:
        ratio = torch.exp(difference_N.new_zeros(batch.num_episodes).index_add(0, batch.episode_N, difference_N))
    low, high = algorithm.importance_sampling_clip_min or 0.0, algorithm.importance_sampling_clip_max
    ratio = ratio.clamp(low, high) if kind == "truncate" else torch.where((ratio < low) | (ratio > high), 0.0, ratio)
    tally.minimum("sampling/importance_sampling_ratio/min", ratio)
    tally.mean("sampling/importance_sampling_ratio/mean", ratio)
    tally.maximum("sampling/importance_sampling_ratio/max", ratio)
    return ratio if level == "token" else ratio[batch.episode_N]
