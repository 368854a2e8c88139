"""The loss of demonstrations, −φ · log π of their tokens, in one pass through the output head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..algorithm.reduction import Tally
from ..algorithm.sequences import MicroBatch
from .output_head import Tokens


@dataclass(frozen=True)
class Imitation:
    """What an optimizer update imitates beside its samples; see `algorithm/demonstrations.py`."""

    micro_batches: Sequence[MicroBatch]
    mu: float
    """Share of the loss, from 0 to 1; the samples have the rest."""
    enable_phi_function: bool
    """Whether a token is weighed by φ = p · (1 − p), a factor without a gradient; φ is 1 otherwise."""

    def loss(self, model: Callable[..., Any], batch: MicroBatch) -> tuple[torch.Tensor, Tally]:
        """Return the micro-batch's part of the loss, a scalar before μ, and its metrics. log π is after temperature,
        as everywhere."""

        def token_loss(logprobs_N: torch.Tensor, _entropy_N: torch.Tensor, chunk: Tokens) -> torch.Tensor:
            loss_N = -batch.weight_N[chunk] * logprobs_N
            if self.enable_phi_function:
                p_N = logprobs_N.detach().exp()
                loss_N = loss_N * p_N * (1.0 - p_N)
            return loss_N.sum()

        logprobs_N, _, loss = model(*batch.inputs, token_loss)
        tally = Tally()
        tally.total("chord/loss", loss)
        tally.mean("chord/logprob", logprobs_N)
        return loss, tally
