"""The chunked output head: right on the device, and what it costs beside whole logits at a vocabulary of 152,000."""

import statistics
import time
from collections.abc import Callable

import torch

from grpo_trainer.engine.output_head import LogitTransform, TokenHead

from .check import Check, Figures, Needs, Place, check
from .made import relative_difference

VOCABULARY, WIDTH, TOKENS, CHUNK_TOKENS = 152_000, 2048, 8192, 1024
TURNS = 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@check()
def head_equals_float64(place: Place) -> Figures:
    """Output head in float32, relative difference from whole logits in float64 on the CPU."""
    tokens, width, vocabulary = (32, 16, 64) if place.tiny else (512, 256, 16_384)
    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, width), torch.randn(vocabulary, width) / width**0.5
    targets = torch.randint(0, vocabulary, (tokens,))
    layer = torch.nn.Linear(width, vocabulary, bias=False)
    layer.weight.data.copy_(weight)
    ours = TokenHead(
        layer.to(place.device), transform=LogitTransform(cap=30.0), temperature=0.7, chunk_tokens=tokens // 3
    )
    found_hidden = hidden.to(place.device, copy=True).requires_grad_()
    found = ours(found_hidden, targets.to(place.device))
    _weighted_sum(*found).backward()
    in_one_pass = ours(found_hidden, targets.to(place.device), lambda logprobs, _, chunk: logprobs.exp().sum())[2]
    of_one_pass = torch.autograd.grad(in_one_pass, (found_hidden, ours.weight))
    right_hidden, right_weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    logits = 30.0 * torch.tanh(right_hidden @ right_weight.T / 30.0) / 0.7
    right = _of_whole(logits, targets)
    right_of_one_pass = torch.autograd.grad(right[0].exp().sum(), (right_hidden, right_weight), retain_graph=True)
    _weighted_sum(*right).backward()
    return {
        "logprobs": relative_difference(found[0], right[0]),
        "entropy": relative_difference(found[1], right[1]),
        "gradient of hidden": relative_difference(found_hidden.grad, right_hidden.grad),
        "gradient of weight": relative_difference(ours.weight.grad, right_weight.grad),
        "one pass, hidden": relative_difference(of_one_pass[0], right_of_one_pass[0]),
        "one pass, weight": relative_difference(of_one_pass[1], right_of_one_pass[1]),
    }


@check(needs=Needs(memory_gib=38.0))
def head_at_vocabulary_152000(place: Place) -> Figures:
    """Output head in bf16, forward and backward, against whole logits: 8,192 tokens × 152,000."""
    tokens, width, vocabulary = (64, 16, 256) if place.tiny else (TOKENS, WIDTH, VOCABULARY)
    torch.manual_seed(0)
    layer = torch.nn.Linear(width, vocabulary, bias=False, device=place.device, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, width, device=place.device, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,), device=place.device)
    # Gradients exist before the measurement: both sides need them.
    hidden.grad, layer.weight.grad = torch.zeros_like(hidden), torch.zeros_like(layer.weight)
    ours = TokenHead(layer, transform=LogitTransform(), temperature=1.0, chunk_tokens=min(CHUNK_TOKENS, tokens // 4))

    def one_pass(hidden_NH: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = ours(hidden_NH, target_N, lambda logprobs, _, chunk: logprobs.sum())[2]
        return loss

    def two_passes(hidden_NH: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
        return ours(hidden_NH, target_N)[0].sum()

    def whole(hidden_NH: torch.Tensor, target_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probabilities = layer(hidden_NH).float().log_softmax(dim=-1)
        with torch.no_grad():
            entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
        return log_probabilities.gather(1, target_N[:, None])[:, 0], entropy

    whole_s, whole_gib = _cost(lambda *inputs: whole(*inputs)[0].sum(), hidden, targets)
    figures: dict[str, float | None] = {}
    for name, loss in (("one pass", one_pass), ("two passes", two_passes)):
        ours_s, ours_gib = _cost(loss, hidden, targets)
        figures[f"{name}, time, s"] = ours_s
        figures[f"{name}, time / whole logits"] = ours_s / whole_s
        figures[f"{name}, memory, GiB"] = ours_gib
        ratio = None if ours_gib is None or whole_gib is None else ours_gib / whole_gib
        figures[f"{name}, memory / whole logits"] = ratio
    return figures


def _of_whole(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_probabilities = logits.log_softmax(dim=-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
    return log_probabilities.gather(1, targets[:, None])[:, 0], entropy


def _weighted_sum(logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    """A loss in which no two tokens weigh the same."""
    weight = torch.linspace(0.5, 1.5, len(logprobs), device=logprobs.device, dtype=logprobs.dtype)
    return (weight * logprobs).sum() + 0.3 * (weight * entropy).sum()


def _cost(loss: Loss, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[float, float | None]:
    """Return the median time in s of forward and backward, and their peak in GiB above what was there; CPU: None.

    Only the logprobs carry a gradient, as in a run without an entropy bonus.
    """
    on_gpu = hidden.device.type == "cuda"
    seconds = []
    for _ in range(TURNS + 1):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        loss(hidden, targets).backward()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if on_gpu else None
    # Leave out the first turn, which warms up.
    return statistics.median(seconds[1:]), peak


CHECKS: list[Check] = [head_equals_float64, head_at_vocabulary_152000]
