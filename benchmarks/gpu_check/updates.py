"""Whole updates of the training engine: bf16 against float32, offload against none, both on one device."""

from functools import partial

import torch

from .check import Check, Figures, Needs, Place, check
from .policies import SMALL, TINY, new_engine, save_policy
from .trained import trained


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed", "peft")), light=False)
def update_in_bf16(place: Place) -> Figures:
    """Updates in bf16 with float32 masters, against float32 from the same weights"""
    shape, length = (TINY, 16) if place.tiny else (SMALL, 256)
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16)
    engines = [partial(new_engine, folder, dtype=dtype, zero_stage=2, rate=1e-3) for dtype in ("float32", "bfloat16")]
    exact, rounded = (trained(engine, shape, length=length) for engine in engines)
    changes = torch.stack([exact.after - exact.before, rounded.after - rounded.before])
    return {
        "gradient norm, relative difference": float((rounded.norms / exact.norms - 1).abs().max()),
        "change of logprobs, correlation": float(torch.corrcoef(changes)[0, 1]),
    }


def _offloaded(place: Place, zero_stage: int) -> Figures:
    shape, length = (TINY, 16) if place.tiny else (SMALL, 256)
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16)
    engine = partial(new_engine, folder, dtype="bfloat16", zero_stage=zero_stage)
    kept, away = (trained(partial(engine, offload=offload), shape, length=length) for offload in (False, True))
    return {
        "gradient norm, relative difference": float((away.norms / kept.norms - 1).abs().max()),
        "peak / without offload": away.peak_to(kept),
    }


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed", "peft")), light=False)
def zero2_with_offload(place: Place) -> Figures:
    """ZeRO-2 with the optimizer in CPU memory, against none of it there"""
    return _offloaded(place, 2)


@check(needs=Needs(memory_gib=8.0, packages=("deepspeed", "peft")), light=False)
def zero3_with_offload(place: Place) -> Figures:
    """ZeRO-3 with the optimizer in CPU memory, against none of it there"""
    return _offloaded(place, 3)


CHECKS: list[Check] = [update_in_bf16, zero2_with_offload, zero3_with_offload]
