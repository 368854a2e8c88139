"""Loss: what an optimizer update makes smaller, on the flat token vectors of a micro-batch.

    l = surrogate · m · c  +  beta · KL
    loss = Σ_n w_n · l_n  −  entropy_coef · (Σ_n entropy_n) / T

The surrogate is one of `surrogates/`, m is the product of `off_policy_mask.py`'s and `entropy_mask.py`'s, c is
`correction.py`'s (each 1 where the surrogate has its own), w_n is `MicroBatch.weight_N`: the normaliser's, over the
whole optimizer update on all ranks. T is the number of trained tokens of that update; with an entropy mask, sum and T
are of the tokens that it keeps. The losses of all micro-batches of all ranks are therefore summed, never averaged.

KL is `kl.py`'s; with `kl_in_reward` it is subtracted from the rewards (`kl_in_reward.py`) and not here.
"""

from dataclasses import replace

import torch

from ..config.algorithm import AlgorithmConfig
from .correction import measure_mismatch, rollout_correction
from .entropy_mask import entropy_mask
from .kl import kl_term
from .off_policy_mask import off_policy_mask
from .reduction import Tally
from .sequences import MicroBatch
from .surrogates import Surrogate, reads_of


def old_logprobs(batch: MicroBatch, logprobs_N: torch.Tensor, *, proximal: bool = False) -> torch.Tensor:
    """log π_old of every token, given the trainer's logprobs before anything was learnt from this generation batch.

    A fresh token came from these very weights: the trainer's own. A push lies between a stale one and now: the
    server's, from the weights that sampled it; or, for a surrogate that reads the `proximal` policy, the trainer's own.
    """
    if proximal:
        return logprobs_N.detach()
    return torch.where(batch.fresh_N, logprobs_N.detach(), batch.rollout_logprobs_N)


def policy_loss(
    logprobs_N: torch.Tensor,
    entropy_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    surrogate: Surrogate,
    *,
    entropy_coef: float | None = None,
) -> tuple[torch.Tensor, Tally]:
    """This micro-batch's part of the update's loss, a scalar to be summed, and metrics under TRL's names.

    `logprobs_N` carry the gradient; `entropy_N` too if `entropy_coef` is to matter, which is that of this update where
    it is adaptive, by default the setting. Raises ValueError when logprobs of
    `batch` that surrogate, correction or KL term read are not filled in.
    """
    tally = Tally()
    measure_mismatch(batch, tally)
    loss_N = token_losses(logprobs_N, entropy_N, batch, algorithm, surrogate, tally)
    loss = (batch.weight_N * loss_N).sum()
    tally.total("tokens_without_finite_loss", (~torch.isfinite(loss_N)).sum())
    coefficient = algorithm.entropy_coef if entropy_coef is None else entropy_coef
    if coefficient > 0.0:
        of_bonus, num_tokens = entropy_N, batch.update_tokens
        if algorithm.masks_low_entropy:
            of_bonus, num_tokens = entropy_N[batch.high_entropy_N], batch.update_high_entropy_tokens
        loss = loss - coefficient * of_bonus.sum() / max(num_tokens, 1)
    tally.total("loss", loss)
    tally.mean("entropy", entropy_N)
    return loss, tally


def token_losses(
    logprobs_N: torch.Tensor,
    entropy_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    surrogate: Surrogate,
    tally: Tally,
) -> torch.Tensor:
    """l of every token [N], before its weight. Raises what `policy_loss` raises."""
    reading = reads_of(surrogate)
    if reading.old and batch.old_logprobs_N is None:
        raise ValueError("old_logprobs_N is not filled in")
    if reading.entropy:
        batch = replace(batch, entropy_N=entropy_N.detach())
    loss_N = surrogate(logprobs_N, batch, algorithm, tally)
    kept_N = off_policy_mask(logprobs_N, batch, algorithm, tally)
    if kept_N is not None:
        loss_N = loss_N * kept_N
    high_N = entropy_mask(entropy_N, batch, algorithm, tally)
    if high_N is not None and not reading.masks_entropy:
        loss_N = loss_N * high_N
    if not reading.corrects_mismatch:
        correction_N = rollout_correction(batch, algorithm, tally)
        loss_N = loss_N if correction_N is None else loss_N * correction_N
    if algorithm.beta_of_loss > 0.0:
        kl_N = kl_term(logprobs_N, batch, algorithm)
        loss_N = loss_N + algorithm.beta_of_loss * kl_N
        tally.mean("kl", kl_N)
    return loss_N
