"""QLoRA: the values of NF4 on the device; updates of an adapter on a model in NF4, against the same weights whole."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.lora.nf4 import NF4Linear

from .check import Check, Figures, Needs, Place, check
from .made import relative_difference
from .policies import TINY, free, made_update, new_engine, save_policy
from .throughput import SHAPES

UPDATES = 3
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@check()
def nf4_equals_the_cpu(place: Place) -> Figures:
    """Values of NF4, the share that is not the CPU's, and that a second quantization changes"""
    found: dict[str, float | None] = {}
    for name, dtype in DTYPES.items():
        layer = nn.Linear(96 if place.tiny else 8960, 1536, bias=False, dtype=dtype)  # several slices, whole and not
        layer.weight.data = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        right = NF4Linear(layer, "cpu").weight
        once = NF4Linear(layer.to(place.device), place.device)
        layer.weight.data = once.weight
        found[f"{name}, not the CPU's"] = float((once.weight.cpu() != right).double().mean())
        twice = NF4Linear(layer, place.device)
        found[f"{name}, changed by a second"] = float((twice.weight != once.weight).double().mean())
    return found


@check(needs=Needs(memory_gib=16.0, packages=("deepspeed",)), light=False)
def update_in_four_bits(place: Place) -> Figures:
    """Updates of an adapter on a 1.5 B model in NF4, against the same weights in bf16, activations recomputed"""
    shape = TINY if place.tiny else SHAPES["1.5 B"]
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16, in_nf4=True)
    whole, kept = (_updates(folder, shape.vocabulary, tiny=place.tiny, load_in_4bit=kept) for kept in (False, True))
    return {
        "gradient norm, relative difference": relative_difference(kept.norms, whole.norms),
        "logprobs at the start, difference": float((kept.logprobs - whole.logprobs).abs().max()),
        "peak / whole": None if kept.peak is None or whole.peak is None else kept.peak / whole.peak,
        "time / whole": kept.update_s / whole.update_s,
    }


@dataclass(frozen=True)
class _Updates:
    norms: torch.Tensor
    """Of the gradients, one for each update."""
    logprobs: torch.Tensor
    """Before the first update, [N]."""
    update_s: float
    peak: int | None
    """Bytes on the GPU."""


def _updates(folder: Path, vocabulary: int, *, tiny: bool, load_in_4bit: bool) -> _Updates:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    engine = new_engine(
        folder, dtype="bfloat16", zero_stage=2, recompute=True, lora=LoraConfig(r=16), load_in_4bit=load_in_4bit
    )
    length = 16 if tiny else 1024
    batches = made_update(engine, vocabulary, completions=8, length=length, tokens_per_micro_batch=4 * length)
    logprobs = torch.cat(engine.logprobs(batches)).cpu()
    norms, seconds = [], []
    for _ in range(UPDATES):
        started = time.perf_counter()
        norms.append(engine.update(batches)["grad_norm"])
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if engine.device.type == "cuda" else None
    free(engine)
    return _Updates(torch.tensor(norms), logprobs, statistics.median(seconds[1:]), peak)


CHECKS: list[Check] = [nf4_equals_the_cpu, update_in_four_bits]
