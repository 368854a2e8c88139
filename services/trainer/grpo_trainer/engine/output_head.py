"""Compute logprobs: hidden states → log-probability and entropy of each completion token, chunk by chunk.

The logits of a long batch are its largest tensor: 8,192 tokens × 151,936 entries in float32 are 5 GB, and a plain
backward pass holds them three times. So only completion tokens pass the output head, `chunk_tokens` at a time, and no
logits are kept. `_TwoPassHead` recomputes those of a chunk in the backward pass. `_OnePassHead` does not need them
there: the loss of each token depends on that token alone, so all gradients are computed while a chunk's logits are at
hand (the idea of Liger's fused losses, arXiv 2410.10989).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from transformers import PretrainedConfig

Outputs = tuple[torch.Tensor, ...]
Tokens: TypeAlias = slice | torch.Tensor
"""Which of a micro-batch's tokens: a slice of the N, or their numbers."""
TokenLoss = Callable[[torch.Tensor, torch.Tensor, Tokens], torch.Tensor]
"""log π and entropy of some of a micro-batch's tokens, and which → the sum of their losses, a scalar. The loss of a
token depends on no log π but its own; the entropy carries no gradient."""

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

    def forward(self, hidden_NH: torch.Tensor, target_N: torch.Tensor, token_loss: TokenLoss | None = None) -> Outputs:
        dtype = torch.float32 if self.in_float32 else self.weight.dtype
        inputs = hidden_NH, self.weight, self.bias, target_N
        settings = self.transform, self.temperature, self.chunk_tokens, dtype
        if token_loss is None:
            outputs: Outputs = _TwoPassHead.apply(*inputs, *settings)
        else:
            outputs = _OnePassHead.apply(*inputs, *settings, token_loss)
        return outputs


class _TwoPassHead(torch.autograd.Function):  # type: ignore[misc]
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
    ) -> Outputs:
        size, weight = hidden_NH.shape[0], weight_VH.to(dtype)
        logprobs_N = torch.empty(size, dtype=torch.float32, device=hidden_NH.device)
        entropy_N, log_sum_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        for chunk in _chunks(size, chunk_tokens):
            logits = _tempered(_logits(hidden_NH[chunk], weight, bias_V, transform), temperature)
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
        transform, temperature = ctx.transform, ctx.temperature
        gradients = _Gradients(hidden_NH, weight_VH, bias_V, transform, temperature, ctx.dtype, ctx.needs_input_grad)
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(log_sum_N)
        for chunk in _chunks(hidden_NH.shape[0], ctx.chunk_tokens):
            logits = _logits(hidden_NH[chunk], gradients.weight_VH, bias_V, transform)
            slope_of_cap = _slope_of_cap(logits, transform)
            _tempered(logits, temperature)
            log_probabilities = logits.sub_(log_sum_N[chunk, None])
            grad_logits = torch.exp(log_probabilities)
            if grad_entropy_N is not None:
                slope = log_probabilities.add_(entropy_N[chunk, None]).mul_(grad_entropy_N[chunk, None])
                grad_logits.mul_(slope.add_(grad_logprobs_N[chunk, None])).neg_()
            else:
                grad_logits.mul_(-grad_logprobs_N[chunk, None])
            grad_logits.scatter_add_(1, target_N[chunk, None], grad_logprobs_N[chunk, None])
            gradients.add(chunk, grad_logits, slope_of_cap)
        found = zip(gradients.found, (hidden_NH, weight_VH, bias_V), strict=True)
        given = (None if gradient is None else gradient.to(of.dtype) for gradient, of in found)
        return *given, None, None, None, None, None


class _OnePassHead(torch.autograd.Function):  # type: ignore[misc]
    """`_TwoPassHead` followed by a loss of each token, whose gradients the forward pass computes. The backward pass
    multiplies them by the gradient of the loss, which is 1 or a factor of the whole loss."""

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
        token_loss: TokenLoss,
    ) -> Outputs:
        size = hidden_NH.shape[0]
        logprobs_N = torch.empty(size, dtype=torch.float32, device=hidden_NH.device)
        entropy_N, loss = torch.empty_like(logprobs_N), logprobs_N.new_zeros(())
        gradients = _Gradients(hidden_NH, weight_VH, bias_V, transform, temperature, dtype, ctx.needs_input_grad)
        for chunk in _chunks(size, chunk_tokens):
            logits = _logits(hidden_NH[chunk], gradients.weight_VH, bias_V, transform)
            slope_of_cap = _slope_of_cap(logits, transform)
            _tempered(logits, temperature)
            log_sum = torch.logsumexp(logits, dim=-1)
            logprobs_N[chunk] = logits.gather(1, target_N[chunk, None])[:, 0] - log_sum
            probabilities = (logits - log_sum[:, None]).exp_()
            entropy_N[chunk] = log_sum - logits.mul_(probabilities).sum(dim=-1)
            with torch.enable_grad():
                own = logprobs_N[chunk].detach().requires_grad_()
                of_chunk = token_loss(own, entropy_N[chunk], chunk)
                (slope,) = torch.autograd.grad(of_chunk, own)
            loss += of_chunk.detach()
            grad_logits = probabilities.mul_(-slope[:, None]).scatter_add_(1, target_N[chunk, None], slope[:, None])
            gradients.add(chunk, grad_logits, slope_of_cap)
        ctx.save_for_backward(*gradients.found)
        ctx.dtypes = hidden_NH.dtype, weight_VH.dtype, None if bias_V is None else bias_V.dtype
        ctx.mark_non_differentiable(logprobs_N, entropy_N)
        return logprobs_N, entropy_N, loss

    @staticmethod
    def backward(ctx: Any, _logprobs: Any, _entropy: Any, grad_loss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        given = (None if gradient is None else gradient.mul_(grad_loss).to(dtype) for gradient, dtype in found)
        return *given, None, None, None, None, None, None


class _Gradients:
    """Gradients of hidden states, weight and bias, from those of a chunk's logits after another.

    Sums over chunks are kept in float32 until the end, so that bf16 rounds once. A frozen head needs none.
    """

    def __init__(
        self,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        transform: LogitTransform,
        temperature: float,
        dtype: torch.dtype,
        needed: tuple[bool, ...],
    ):
        _, trains_weight, trains_bias, *_ = needed
        self.hidden_NH, self.weight_VH = hidden_NH, weight_VH.to(dtype)
        self._slope = transform.scale / temperature
        self._of_hidden_NH = torch.empty_like(hidden_NH)
        self._of_weight_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if trains_weight else None
        self._of_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if trains_bias else None

    def add(self, chunk: slice, grad_logits: torch.Tensor, slope_of_cap: torch.Tensor | None) -> None:
        """Take in the gradient of the logits of `chunk` after temperature [n, V], and overwrite it."""
        if self._slope != 1.0:
            grad_logits.mul_(self._slope)
        if slope_of_cap is not None:
            grad_logits.mul_(slope_of_cap)
        if self._of_bias_V is not None:
            self._of_bias_V += grad_logits.sum(dim=0)
        grad_logits = grad_logits.to(self.weight_VH.dtype)
        self._of_hidden_NH[chunk] = (grad_logits @ self.weight_VH).to(self._of_hidden_NH.dtype)
        if self._of_weight_VH is None:
            return
        if self.weight_VH.dtype == torch.float32:
            self._of_weight_VH.addmm_(grad_logits.T, self.hidden_NH[chunk].float())
        else:
            self._of_weight_VH += grad_logits.T @ self.hidden_NH[chunk]

    @property
    def found(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        return self._of_hidden_NH, self._of_weight_VH, self._of_bias_V


def _slope_of_cap(logits: torch.Tensor, transform: LogitTransform) -> torch.Tensor | None:
    """The derivative of soft-capping at logits before temperature; None where nothing is capped."""
    return None if transform.cap is None else 1.0 - (logits / transform.cap).square_()


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


def _tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide in place. At 1 leave them alone: a pass over a chunk's logits is a part of the head's time on a GPU."""
    return logits if temperature == 1.0 else logits.div_(temperature)


def _chunks(size: int, chunk_tokens: int) -> Iterator[slice]:
    for start in range(0, size, chunk_tokens):
        yield slice(start, min(start + chunk_tokens, size))
