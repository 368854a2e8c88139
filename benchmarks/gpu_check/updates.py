"""Whole updates of the training engine: bf16 against float32, offload against none, both on one device."""

import gc
from pathlib import Path

import torch

from .check import Check, Figures, Needs, Place, check
from .policies import SMALL, TINY, free, made_update, new_engine, save_policy

UPDATES = 3


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed",)), light=False)
def update_in_bf16(place: Place) -> Figures:
    """Updates in bf16 with float32 masters, against float32 from the same weights"""
    shape = TINY if place.tiny else SMALL
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16)
    norms, changes = {}, {}
    for dtype in ("float32", "bfloat16"):
        found = _updates(folder, shape.vocabulary, tiny=place.tiny, dtype=dtype, zero_stage=2, rate=1e-3)
        norms[dtype], changes[dtype] = torch.tensor(found.norms), found.change
    return {
        "gradient norm, relative difference": float((norms["bfloat16"] / norms["float32"] - 1).abs().max()),
        "change of logprobs, correlation": float(torch.corrcoef(torch.stack(list(changes.values())))[0, 1]),
    }


class _Updates:
    """What a few updates of one engine did. `change` is that of the logprobs, [N] on the CPU."""

    def __init__(self, norms: list[float], change: torch.Tensor, peak_gib: float | None):
        self.norms, self.change, self.peak_gib = norms, change, peak_gib


def _updates(
    folder: Path, vocabulary: int, *, tiny: bool, dtype: str, zero_stage: int, offload: bool = False, rate: float = 1e-4
) -> _Updates:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    engine = new_engine(folder, dtype=dtype, zero_stage=zero_stage, offload=offload, rate=rate)
    length = 16 if tiny else 256
    batches = made_update(engine, vocabulary, completions=8, length=length, tokens_per_micro_batch=4 * length)
    before = torch.cat(engine.logprobs(batches))
    norms = [engine.update(batches)["grad_norm"] for _ in range(UPDATES)]
    change = (torch.cat(engine.logprobs(batches)) - before).float().cpu()
    peak = torch.cuda.max_memory_allocated() / 2**30 if engine.device.type == "cuda" else None
    free(engine)
    del engine, batches
    gc.collect()
    return _Updates(norms, change, peak)


def _offloaded(place: Place, zero_stage: int) -> Figures:
    shape = TINY if place.tiny else SMALL
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16)
    kept, away = (
        _updates(folder, shape.vocabulary, tiny=place.tiny, dtype="bfloat16", zero_stage=zero_stage, offload=offload)
        for offload in (False, True)
    )
    return {
        "gradient norm, relative difference": float(
            (torch.tensor(away.norms) / torch.tensor(kept.norms) - 1).abs().max()
        ),
        "peak / without offload": None
        if kept.peak_gib is None or away.peak_gib is None
        else away.peak_gib / kept.peak_gib,
    }


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed",)), light=False)
def zero2_with_offload(place: Place) -> Figures:
    """ZeRO-2 with the optimizer in CPU memory, against none of it there"""
    return _offloaded(place, 2)


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed",)), light=False)
def zero3_with_offload(place: Place) -> Figures:
    """ZeRO-3 with the optimizer in CPU memory, against none of it there"""
    return _offloaded(place, 3)


CHECKS: list[Check] = [update_in_bf16, zero2_with_offload, zero3_with_offload]
