"""What a few updates of a training engine do, and what they cost."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .policies import Shape, free, made_update

if TYPE_CHECKING:
    from grpo_trainer.engine.training_engine import TrainingEngine

UPDATES, COMPLETIONS = 3, 8


@dataclass(frozen=True)
class Trained:
    norms: torch.Tensor
    """Of the gradients, one for each update."""
    before: torch.Tensor
    """Logprobs before the first update, [N] on the CPU."""
    after: torch.Tensor
    """After the last, [N] on the CPU."""
    update_s: float
    """The median, without the first."""
    peak: int | None
    """Bytes on the GPU above what was there, from the making of the engine on; None on a CPU."""

    def peak_to(self, other: "Trained") -> float | None:
        return None if self.peak is None or other.peak is None else self.peak / other.peak


def trained(new_engine: Callable[[], "TrainingEngine"], shape: Shape, *, length: int) -> Trained:
    """Make an engine, a few updates of one batch of sequences of `length` tokens, and give its memory back."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    # Subtract what an engine before this one has left: its weights in bf16, see `free`.
    left = torch.cuda.memory_allocated() if on_gpu else 0
    engine = new_engine()
    batches = made_update(
        engine,
        shape.vocabulary,
        completions=COMPLETIONS,
        length=length,
        tokens_per_micro_batch=4 * length,
    )
    before = torch.cat(engine.logprobs(batches)).float().cpu()
    norms, seconds = [], []
    for _ in range(UPDATES):
        started = time.perf_counter()
        norms.append(engine.update(batches)["grad_norm"])
        seconds.append(time.perf_counter() - started)
    after = torch.cat(engine.logprobs(batches)).float().cpu()
    peak = torch.cuda.max_memory_allocated() - left if engine.device.type == "cuda" else None
    free(engine)
    del engine, batches
    gc.collect()
    return Trained(torch.tensor(norms), before, after, statistics.median(seconds[1:]), peak)
