"""The loss of a micro-batch under a model, with gradients that the output head computes in one pass where it can."""

from collections.abc import Callable
from typing import Any

import torch

from ..algorithm.loss import old_logprobs, policy_loss, token_losses
from ..algorithm.reduction import Tally
from ..algorithm.sequences import MicroBatch
from ..algorithm.surrogates import Surrogate, reads_of
from ..algorithm.surrogates.reads import is_by_token
from ..config.algorithm import AlgorithmConfig
from .output_head import Tokens


def batch_loss(
    model: Callable[..., Any],
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    surrogate: Surrogate,
    *,
    entropy_coef: float,
    fills_old: bool,
) -> tuple[torch.Tensor, Tally]:
    """The micro-batch's part of the update's loss, and its metrics, in one pass and in two: those of `policy_loss`, and
    with a load-balancing loss `aux_loss`, which is part of `loss` then.

    `model` is a `Policy` or the engine around it. `fills_old`: the policy's own logprobs become the old ones of a
    micro-batch that has none yet.
    """

    def fill_old(tokens: MicroBatch, logprobs_N: torch.Tensor) -> None:
        if fills_old and tokens.old_logprobs_N is None:
            tokens.old_logprobs_N = old_logprobs(tokens, logprobs_N, proximal=reads_of(surrogate).proximal)

    def token_loss(logprobs_N: torch.Tensor, entropy_N: torch.Tensor, chunk: Tokens) -> torch.Tensor:
        tokens = batch.part(chunk)
        fill_old(tokens, logprobs_N)
        # Metrics are those of the whole micro-batch, below.
        loss_N = token_losses(logprobs_N, entropy_N, tokens, algorithm, surrogate, Tally())
        return (tokens.weight_N * loss_N).sum()

    in_one_pass = torch.is_grad_enabled() and entropy_coef == 0.0 and is_by_token(surrogate, algorithm)
    balances = algorithm.load_balancing_coef > 0.0
    logprobs_N, entropy_N, *scalars = model(
        *batch.inputs, token_loss if in_one_pass else None, batch.token_counts_BL if balances else None
    )
    fill_old(batch, logprobs_N)
    if entropy_coef == 0.0:
        entropy_N = entropy_N.detach()
    loss, tally = policy_loss(logprobs_N, entropy_N, batch, algorithm, surrogate, entropy_coef=entropy_coef)
    if in_one_pass:
        loss = scalars[0]
    if balances:
        # A mean of the micro-batch, which counts for as much of the update as it trains.
        balance = scalars[-1] * sum(batch.trained_Q) / max(batch.update_tokens, 1)
        tally.total("aux_loss", balance)
        tally.total("loss", algorithm.load_balancing_coef * balance)
        loss = loss + algorithm.load_balancing_coef * balance
    return loss, tally
