"""Compute logprobs: hidden states → log-probability and entropy of each completion token, chunk by chunk.

The logits of a long batch are its largest tensor: 8,192 tokens × 151,936 entries in float32 are 5 GB, and a plain
backward pass holds them three times. So only completion tokens pass the output head, `chunk_tokens` at a time, and the
backward pass recomputes the logits of a chunk instead of keeping them.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UsageError

Pair = tuple[torch.Tensor, torch.Tensor]

# Settings of models that transform their logits after the output head: the chunked head does not.
LOGIT_TRANSFORMS = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
}


class Policy(nn.Module):  # type: ignore[misc]
    """A causal language model that returns logprobs. The wrapped model keeps its parameters and their names.

    Raises UsageError for models that transform their logits (soft-capping, scaling).
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, chunk_tokens: int):
        super().__init__()
        for key, neutral in LOGIT_TRANSFORMS.items():
            value = getattr(model.config, key, None)
            if value is not None and value != neutral:
                raise UsageError(
                    f"model {model.config.model_type} sets {key} to {value}, which the trainer does not reproduce",
                    hint="use a model with plain logits",
                )
        self.model = model
        self.head = TokenHead(model.get_output_embeddings(), temperature=temperature, chunk_tokens=chunk_tokens)

    def forward(self, input_ids_BL: torch.Tensor, row_N: torch.Tensor, column_N: torch.Tensor) -> Pair:
        """Return log π and entropy [N], float32, of the tokens at (row_N, column_N), after temperature.

        Sequences are padded on the right: with causal attention they need no mask (see `MicroBatch`).
        """
        hidden_BLH = self.model.base_model(input_ids=input_ids_BL, use_cache=False).last_hidden_state
        length, width = hidden_BLH.shape[1:]
        # The hidden state of a column predicts the token of the next column.
        hidden_NH = hidden_BLH.reshape(-1, width).index_select(0, row_N * length + column_N - 1)
        return cast(Pair, self.head(hidden_NH, input_ids_BL[row_N, column_N]))


class TokenHead(nn.Module):  # type: ignore[misc]
    """The output head: call it once for a whole micro-batch; it chunks inside.

    A single call, because under ZeRO-3 a call gathers the weight, which is a collective, and the number of chunks
    differs between ranks. It shares the parameters of the model's own head.
    """

    def __init__(self, head: nn.Module, *, temperature: float, chunk_tokens: int):
        super().__init__()
        self.weight = head.weight
        self.bias = getattr(head, "bias", None)
        self.temperature, self.chunk_tokens = temperature, chunk_tokens

    def forward(self, hidden_NH: torch.Tensor, target_N: torch.Tensor) -> Pair:
        pair = _ChunkedHead.apply(hidden_NH, self.weight, self.bias, target_N, self.temperature, self.chunk_tokens)
        return cast(Pair, pair)


class _ChunkedHead(torch.autograd.Function):  # type: ignore[misc]
    """With logits z = (h W' + b) / temperature, p = softmax(z) and H = −Σ_v p_v log p_v:

        ∂ log p_target / ∂z_v = [v = target] − p_v          ∂H / ∂z_v = −p_v (log p_v + H)

    Matrix products are in the weight's dtype, softmax and sums in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        target_N: torch.Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> Pair:
        size = hidden_NH.shape[0]
        logprobs_N = torch.empty(size, dtype=torch.float32, device=hidden_NH.device)
        entropy_N, log_sum_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for chunk in _chunks(size, chunk_tokens):
            logits = _logits(hidden_NH[chunk], weight_VH, bias_V, temperature)
            log_sum_N[chunk] = torch.logsumexp(logits, dim=-1)
            logprobs_N[chunk] = logits.gather(1, target_N[chunk, None])[:, 0] - log_sum_N[chunk]
            # H = log Σ exp(z) − Σ p z
            probabilities = torch.exp(logits - log_sum_N[chunk, None])
            entropy_N[chunk] = log_sum_N[chunk] - probabilities.mul_(logits).sum(dim=-1)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, log_sum_N, entropy_N)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: torch.Tensor | None, grad_entropy_N: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_N, log_sum_N, entropy_N = ctx.saved_tensors
        temperature, chunk_tokens = ctx.temperature, ctx.chunk_tokens
        # Keep sums over chunks in float32 until the end, so that bf16 rounds once. A frozen head needs none.
        _, trains_weight, trains_bias, *_ = ctx.needs_input_grad
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if trains_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if trains_bias else None
        grad_hidden_NH = torch.empty_like(hidden_NH)
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(log_sum_N)
        for chunk in _chunks(hidden_NH.shape[0], chunk_tokens):
            logits = _logits(hidden_NH[chunk], weight_VH, bias_V, temperature)
            log_probabilities = logits.sub_(log_sum_N[chunk, None])
            grad_logits = torch.exp(log_probabilities)
            if grad_entropy_N is not None:
                slope = log_probabilities.add_(entropy_N[chunk, None]).mul_(grad_entropy_N[chunk, None])
                grad_logits.mul_(slope.add_(grad_logprobs_N[chunk, None])).neg_()
            else:
                grad_logits.mul_(-grad_logprobs_N[chunk, None])
            grad_logits.scatter_add_(1, target_N[chunk, None], grad_logprobs_N[chunk, None])
            grad_logits.div_(temperature)
            if grad_bias_V is not None:
                grad_bias_V += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(weight_VH.dtype)
            grad_hidden_NH[chunk] = grad_logits @ weight_VH
            if grad_weight_VH is None:
                continue
            if weight_VH.dtype == torch.float32:
                grad_weight_VH.addmm_(grad_logits.T, hidden_NH[chunk])
            else:
                grad_weight_VH += grad_logits.T @ hidden_NH[chunk]
        grad_weight = None if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype)
        grad_bias = None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_NH, grad_weight, grad_bias, None, None, None


def _logits(
    hidden: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    logits = hidden @ weight_VH.T
    if bias_V is not None:
        logits = logits + bias_V
    return logits.float().div_(temperature)


def _chunks(size: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, size, chunk_tokens):
        yield slice(start, min(start + chunk_tokens, size))
