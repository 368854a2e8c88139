"""Loss: the clipped policy gradient of GRPO on the flat token vectors of a micro-batch.

For token n with ratio ρ = π(n) / π_old(n) and advantage A, everything as in TRL's GRPOTrainer:

    l = −min( min(ρ, delta) · A,  clip(ρ, 1 − epsilon, 1 + epsilon_high) · A ) · c  +  beta · k3 · ρ
    k3 = π_ref/π − log(π_ref/π) − 1            (arXiv 2402.03300, equation 4)
    loss = Σ_n w_n · l_n  −  entropy_coef · (Σ_n entropy_n) / T

w_n is `MicroBatch.weight_N`: the loss type's denominator, over the whole optimizer update on all ranks
(`batching.token_weights`). T is the number of completion tokens of that update. The losses of all micro-batches of all
ranks are therefore summed, never averaged.

`delta` bounds the ratio where the clip leaves it free (A < 0). c is the correction for what the rollout server sampled
from, π_old / π_rollout, bounded by `importance_sampling_clip_max`. The factor ρ of k3 makes its gradient the unbiased
one of the reverse KL (DeepSeek-V3.2, arXiv 2512.02556); TRL's `use_bias_correction_kl` is on by default, here it always
is. Left out on purpose: sequence-level ratios (GSPO), entropy masks and a lower bound of c.
"""

import torch

from ..config.run_config import AlgorithmConfig
from .reduction import Tally
from .sequences import MicroBatch


def old_logprobs(batch: MicroBatch, logprobs_N: torch.Tensor) -> torch.Tensor:
    """log π_old of every token, given the trainer's logprobs before anything was learnt from this generation batch.

    A fresh sample came from these very weights: the trainer's own. A push lies between a stale one and now: the
    server's, from the weights that sampled it.
    """
    return torch.where(batch.fresh_N, logprobs_N.detach(), batch.rollout_logprobs_N)


def policy_loss(
    logprobs_N: torch.Tensor, entropy_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, Tally]:
    """This micro-batch's part of the update's loss, a scalar to be summed, and metrics under TRL's names.

    `logprobs_N` carry the gradient; `entropy_N` too if `entropy_coef` is to matter. Raises ValueError when
    `batch.old_logprobs_N` is not filled in, or with `beta` > 0 `batch.ref_logprobs_N`.
    """
    if batch.old_logprobs_N is None:
        raise ValueError("old_logprobs_N is not filled in")
    tally = Tally()
    advantage_N = batch.advantage_N
    ratio_N = torch.exp(logprobs_N - batch.old_logprobs_N)
    low, high = 1.0 - algorithm.epsilon, 1.0 + algorithm.upper_epsilon
    bounded_N = ratio_N if algorithm.delta is None else ratio_N.clamp(max=algorithm.delta)
    loss_N = -torch.minimum(bounded_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)

    correction_N = _rollout_correction(batch, batch.old_logprobs_N, algorithm, tally)
    if correction_N is not None:
        loss_N = loss_N * correction_N
    if algorithm.beta > 0.0:
        if batch.ref_logprobs_N is None:
            raise ValueError("beta is not 0 and ref_logprobs_N is not filled in")
        log_ratio_N = batch.ref_logprobs_N - logprobs_N
        kl_N = (torch.exp(log_ratio_N) - log_ratio_N - 1.0) * ratio_N
        loss_N = loss_N + algorithm.beta * kl_N
        tally.mean("kl", kl_N)
    loss = (batch.weight_N * loss_N).sum()
    if algorithm.entropy_coef > 0.0:
        loss = loss - algorithm.entropy_coef * entropy_N.sum() / max(batch.update_tokens, 1)

    tally.total("loss", loss)
    tally.mean("entropy", entropy_N)
    _tally_clipping(bounded_N, low, high, batch, tally)
    return loss, tally


def _rollout_correction(
    batch: MicroBatch, old_logprobs_N: torch.Tensor, algorithm: AlgorithmConfig, tally: Tally
) -> torch.Tensor | None:
    """c_n = π_old(n) / π_rollout(n), bounded: truncated importance sampling; None when it is switched off.

    `token_*` takes the ratio of each token, `sequence_*` the product over the completion; `*_truncate` cuts at
    `importance_sampling_clip_max`, `*_mask` drops what lies above. Where the server gave no logprob the ratio is 1. The
    ratio of a stale token is 1 too, its old logprob is the server's.
    """
    difference_N = old_logprobs_N - batch.rollout_logprobs_N
    known_N = ~torch.isnan(difference_N)
    mismatch = difference_N[known_N & batch.fresh_N].abs()
    tally.mean("sampling/sampling_logp_difference/mean", mismatch)
    tally.maximum("sampling/sampling_logp_difference/max", mismatch)
    if not algorithm.importance_sampling_correction:
        return None
    difference_N = torch.where(known_N, difference_N, 0.0)
    level, kind = algorithm.importance_sampling_mode.split("_")
    if level == "token":
        ratio = torch.exp(difference_N)
    else:
        ratio = torch.exp(difference_N.new_zeros(batch.num_rows).index_add(0, batch.row_N, difference_N))
    limit = algorithm.importance_sampling_clip_max
    ratio = ratio.clamp(max=limit) if kind == "truncate" else torch.where(ratio > limit, 0.0, ratio)
    # The row of an empty micro-batch is no sequence.
    recorded = ratio if batch.row_N.numel() else ratio[:0]
    tally.minimum("sampling/importance_sampling_ratio/min", recorded)
    tally.mean("sampling/importance_sampling_ratio/mean", recorded)
    tally.maximum("sampling/importance_sampling_ratio/max", recorded)
    return ratio if level == "token" else ratio[batch.row_N]


def _tally_clipping(ratio_N: torch.Tensor, low: float, high: float, batch: MicroBatch, tally: Tally) -> None:
    """Shares of tokens whose gradient the clip cut off; the extremes are those of a sequence's share."""
    low_clipped_N = ((ratio_N < low) & (batch.advantage_N < 0)).double()
    high_clipped_N = ((ratio_N > high) & (batch.advantage_N > 0)).double()
    tally.mean("clip_ratio/low_mean", low_clipped_N)
    tally.mean("clip_ratio/high_mean", high_clipped_N)
    tally.mean("clip_ratio/region_mean", low_clipped_N + high_clipped_N)
    tally.minimum("clip_ratio/low_min", _mean_by_sequence(low_clipped_N, batch))
    tally.maximum("clip_ratio/high_max", _mean_by_sequence(high_clipped_N, batch))


def _mean_by_sequence(values_N: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """One mean for each row that has completion tokens."""
    sums_B = values_N.new_zeros(batch.num_rows).index_add(0, batch.row_N, values_N)
    counts_B = values_N.new_zeros(batch.num_rows).index_add(0, batch.row_N, torch.ones_like(values_N))
    return (sums_B / counts_B)[counts_B > 0]
