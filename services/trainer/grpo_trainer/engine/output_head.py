"""Compute logprobs: hidden states → log-probability and entropy of each completion token, chunk by chunk.

The logits of a long batch are its largest tensor: 8,192 tokens × 151,936 entries in float32 are 5 GB, and a plain
backward pass holds them three times. So only completion tokens pass the output head, `chunk_tokens` at a time, and the
backward pass recomputes the logits of a chunk instead of keeping them.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

Pair = tuple[torch.Tensor, torch.Tensor]

FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Settings by which a family multiplies its logits: cohere, falcon_h1, muse_glimmer."""
MULTIPLIES_BY_LOGITS_SCALING = ("hyperclovax",)
"""Families that multiply by `logits_scaling`; granite, which the setting comes from, divides by it."""


class LogitTransform(NamedTuple):
    """What a family does to the products of the output head: first `scale` · x, then cap · tanh(x / cap)."""

    scale: float = 1.0
    cap: float | None = None


def logit_transform(config: PretrainedConfig) -> LogitTransform:
    """Read the transform from the model's configuration."""
    text = config.get_text_config()
    scale = math.prod(float(getattr(text, key, None) or 1.0) for key in FACTORS)
    scaling = float(getattr(text, "logits_scaling", None) or 1.0)
    scale = scale * scaling if text.model_type in MULTIPLIES_BY_LOGITS_SCALING else scale / scaling
    return LogitTransform(scale, getattr(text, "final_logit_softcapping", None))


class Policy(nn.Module):  # type: ignore[misc]
    """A causal language model that returns logprobs. The wrapped model keeps its parameters and their names."""

    def __init__(self, model: PreTrainedModel, *, temperature: float, chunk_tokens: int, in_float32: bool = False):
        super().__init__()
        self.model = model
        self.head = TokenHead(
            model.get_output_embeddings(),
            transform=logit_transform(model.config),
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            in_float32=in_float32,
        )

    def forward(self, input_ids_BL: torch.Tensor, row_N: torch.Tensor, column_N: torch.Tensor) -> Pair:
        """Return log π and entropy [N], float32, of the tokens at (row_N, column_N), after temperature.

        Sequences are padded on the right: with causal attention they need no mask (see `MicroBatch`).
        """
        hidden_BLH = self.model.get_decoder()(input_ids=input_ids_BL, use_cache=False).last_hidden_state
        length, width = hidden_BLH.shape[1:]
        # The hidden state of a column predicts the token of the next column.
        hidden_NH = hidden_BLH.reshape(-1, width).index_select(0, row_N * length + column_N - 1)
        return cast(Pair, self.head(hidden_NH, input_ids_BL[row_N, column_N]))


class TokenHead(nn.Module):  # type: ignore[misc]
    """The output head: call it once for a whole micro-batch; it chunks inside.

    A single call, because under ZeRO-3 a call gathers the weight, which is a collective, and the number of chunks
    differs between ranks. It shares the parameters of the model's own head.

    `in_float32` computes the logits' products in float32, from the parameters as they are: bfloat16 rounds logits, and
    with them the logprobs of rare tokens (MiniMax-M1, arXiv 2506.13585). It takes a float32 copy of the weight while
    the head computes.
    """

    def __init__(
        self,
        head: nn.Module,
        *,
        transform: LogitTransform,
        temperature: float,
        chunk_tokens: int,
        in_float32: bool = False,
    ):
        super().__init__()
        self.weight = head.weight
        self.bias = getattr(head, "bias", None)
        self.transform, self.temperature, self.chunk_tokens = transform, temperature, chunk_tokens
        self.in_float32 = in_float32

    def forward(self, hidden_NH: torch.Tensor, target_N: torch.Tensor) -> Pair:
        pair = _ChunkedHead.apply(
            hidden_NH,
            self.weight,
            self.bias,
            target_N,
            self.transform,
            self.temperature,
            self.chunk_tokens,
            torch.float32 if self.in_float32 else self.weight.dtype,
        )
        return cast(Pair, pair)


class _ChunkedHead(torch.autograd.Function):  # type: ignore[misc]
    """With logits z = f(h W' + b) / temperature, p = softmax(z) and H = −Σ_v p_v log p_v:

        ∂ log p_target / ∂z_v = [v = target] − p_v          ∂H / ∂z_v = −p_v (log p_v + H)

    f is the family's transform: with x scaled, f'(x) = scale, and with soft-capping at c, scale · (1 − (f(x) / c)²).

    Matrix products are in `dtype`, softmax and sums in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        target_N: torch.Tensor,
        transform: LogitTransform,
        temperature: float,
        chunk_tokens: int,
        dtype: torch.dtype,
    ) -> Pair:
        size, weight = hidden_NH.shape[0], weight_VH.to(dtype)
        logprobs_N = torch.empty(size, dtype=torch.float32, device=hidden_NH.device)
        entropy_N, log_sum_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for chunk in _chunks(size, chunk_tokens):
            logits = _logits(hidden_NH[chunk], weight, bias_V, transform).div_(temperature)
            log_sum_N[chunk] = torch.logsumexp(logits, dim=-1)
            logprobs_N[chunk] = logits.gather(1, target_N[chunk, None])[:, 0] - log_sum_N[chunk]
            # H = log Σ exp(z) − Σ p z
            probabilities = torch.exp(logits - log_sum_N[chunk, None])
            entropy_N[chunk] = log_sum_N[chunk] - probabilities.mul_(logits).sum(dim=-1)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, log_sum_N, entropy_N)
        ctx.transform, ctx.temperature, ctx.chunk_tokens, ctx.dtype = transform, temperature, chunk_tokens, dtype
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs_N: torch.Tensor | None, grad_entropy_N: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_N, log_sum_N, entropy_N = ctx.saved_tensors
        transform, temperature, chunk_tokens = ctx.transform, ctx.temperature, ctx.chunk_tokens
        weight = weight_VH.to(ctx.dtype)
        # Keep sums over chunks in float32 until the end, so that bf16 rounds once. A frozen head needs none.
        _, trains_weight, trains_bias, *_ = ctx.needs_input_grad
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if trains_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if trains_bias else None
        grad_hidden_NH = torch.empty_like(hidden_NH)
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(log_sum_N)
        for chunk in _chunks(hidden_NH.shape[0], chunk_tokens):
            logits = _logits(hidden_NH[chunk], weight, bias_V, transform)
            slope_of_cap = None if transform.cap is None else 1.0 - (logits / transform.cap).square_()
            logits.div_(temperature)
            log_probabilities = logits.sub_(log_sum_N[chunk, None])
            grad_logits = torch.exp(log_probabilities)
            if grad_entropy_N is not None:
                slope = log_probabilities.add_(entropy_N[chunk, None]).mul_(grad_entropy_N[chunk, None])
                grad_logits.mul_(slope.add_(grad_logprobs_N[chunk, None])).neg_()
            else:
                grad_logits.mul_(-grad_logprobs_N[chunk, None])
            grad_logits.scatter_add_(1, target_N[chunk, None], grad_logprobs_N[chunk, None])
            grad_logits.mul_(transform.scale / temperature)
            if slope_of_cap is not None:
                grad_logits.mul_(slope_of_cap)
            if grad_bias_V is not None:
                grad_bias_V += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(weight.dtype)
            grad_hidden_NH[chunk] = (grad_logits @ weight).to(grad_hidden_NH.dtype)
            if grad_weight_VH is None:
                continue
            if weight.dtype == torch.float32:
                grad_weight_VH.addmm_(grad_logits.T, hidden_NH[chunk].float())
            else:
                grad_weight_VH += grad_logits.T @ hidden_NH[chunk]
        grad_weight = None if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype)
        grad_bias = None if grad_bias_V is None else grad_bias_V.to(bias_V.dtype)
        return grad_hidden_NH, grad_weight, grad_bias, None, None, None, None, None


def _logits(
    hidden: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, transform: LogitTransform
) -> torch.Tensor:
    """The family's logits before temperature, float32; the product is in the weight's dtype."""
    logits = hidden.to(weight_VH.dtype) @ weight_VH.T
    if bias_V is not None:
        logits = logits + bias_V
    logits = logits.float()
    if transform.scale != 1.0:
        logits.mul_(transform.scale)
    if transform.cap is not None:
        logits.div_(transform.cap).tanh_().mul_(transform.cap)
    return logits


def _chunks(size: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, size, chunk_tokens):
        yield slice(start, min(start + chunk_tokens, size))
