"""Memory, tokens/s and MFU of updates at the shapes of Qwen2.5 with 0.5, 1.5 and 3 billion parameters."""

import statistics
import time

import torch

from .check import Check, Figures, Needs, Place, check
from .policies import TINY, Shape, made_update, new_engine, save_policy

SHAPES = {
    "0.5 B": Shape(hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2),
    "1.5 B": Shape(hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2),
    "3 B": Shape(hidden=2048, intermediate=11_008, layers=36, heads=16, kv_heads=2),
}
PEAK_FLOPS = {
    "B200": 2.25e15, "H200": 9.89e14, "H100 PCIe": 7.56e14, "H100 NVL": 8.35e14, "H100": 9.89e14, "A100": 3.12e14,
    "L40S": 3.62e14, "L4": 1.21e14, "A10": 1.25e14, "4090": 1.65e14,
}  # fmt: skip
"""Dense bf16 by a part of the GPU's name, as its maker states it; the first that fits counts."""
LENGTH, COMPLETIONS, TOKENS_PER_MICRO_BATCH, TURNS = 2048, 16, 8192, 5


def peak_flops(name: str) -> float | None:
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


def flops_per_update(shape: Shape, sequences: int, length: int) -> float:
    """Of forward and backward, without what is recomputed: 6 a parameter and token, and the attention scores.

    The scores of causal attention are half of a square: 2 products × 2 flops × L² / 2 × hidden in the forward pass, and
    twice that in the backward pass. The output head counts for every token, though prompts do not pass it.
    """
    return sequences * (6.0 * shape.num_parameters * length + 6.0 * shape.layers * length**2 * shape.hidden)


def _measured(place: Place, name: str) -> Figures:
    """18 bytes a parameter: weights in bf16 (2), gradients (4), masters (4) and the two moments (8) in float32."""
    shape = TINY if place.tiny else SHAPES[name]
    length, completions = (16, 4) if place.tiny else (LENGTH, COMPLETIONS)
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16)
    engine = new_engine(folder, dtype="bfloat16", zero_stage=2, recompute=True)
    budget = 4 * length if place.tiny else TOKENS_PER_MICRO_BATCH
    batches = made_update(
        engine, shape.vocabulary, completions=completions, length=length, tokens_per_micro_batch=budget
    )
    on_gpu = engine.device.type == "cuda"
    seconds = []
    for _ in range(TURNS):
        started = time.perf_counter()
        # The update reduces its metrics into Python's floats, and so waits for the GPU.
        engine.update(batches)
        seconds.append(time.perf_counter() - started)
    update_s = statistics.median(seconds[1:])
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    limit = peak_flops(torch.cuda.get_device_name()) if on_gpu else None
    flops = flops_per_update(shape, completions, length) / update_s
    return {
        "memory, GiB": None if peak is None else peak / 2**30,
        "memory / 18 bytes a parameter": None if peak is None else peak / (18 * shape.num_parameters),
        "tokens/s": completions * length / update_s,
        "MFU": None if limit is None else flops / limit,
    }


@check(needs=Needs(memory_gib=22.0, packages=("deepspeed", "peft")), light=False)
def update_of_half_a_billion(place: Place) -> Figures:
    """Updates of a 0.5 B model in bf16, ZeRO-2, activations recomputed: 16 sequences of 2,048 tokens"""
    return _measured(place, "0.5 B")


@check(needs=Needs(memory_gib=44.0, packages=("deepspeed", "peft")), light=False)
def update_of_one_and_a_half_billion(place: Place) -> Figures:
    """Updates of a 1.5 B model in bf16, ZeRO-2, activations recomputed: 16 sequences of 2,048 tokens"""
    return _measured(place, "1.5 B")


@check(needs=Needs(memory_gib=76.0, packages=("deepspeed", "peft")), light=False)
def update_of_three_billion(place: Place) -> Figures:
    """Updates of a 3 B model in bf16, ZeRO-2, activations recomputed: 16 sequences of 2,048 tokens"""
    return _measured(place, "3 B")


CHECKS: list[Check] = [update_of_half_a_billion, update_of_one_and_a_half_billion, update_of_three_billion]
