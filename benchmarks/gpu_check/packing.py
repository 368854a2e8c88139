"""Packed rows, several sequences in a row of a micro-batch, against a row for each sequence."""

from functools import partial
from typing import Literal

import torch

from .check import Check, Figures, Needs, Place, check
from .made import relative_difference
from .policies import TINY, new_engine, save_policy
from .throughput import SHAPES
from .trained import trained

WEIGHT_DEVIATION = 0.05
"""Weights so large that what attends to another sequence of its row is beyond the bound of logprobs, tiny or not."""


@check(needs=Needs(memory_gib=22.0, packages=("deepspeed", "peft")), light=False)
def packed_rows(place: Place) -> Figures:
    """Updates of a 0.5 B model in bf16 with sequences of many lengths packed, against padded rows"""
    return _against_padded(place, "sdpa")


@check(needs=Needs(memory_gib=22.0, packages=("deepspeed", "peft", "flash_attn")), light=False)
def packed_flash_attention(place: Place) -> Figures:
    """Updates of a 0.5 B model in bf16 with all sequences in one row, with flash attention, against padded rows"""
    return _against_padded(place, "flash_attention_2")


def _against_padded(place: Place, attention: Literal["sdpa", "flash_attention_2"]) -> Figures:
    shape, length = (TINY, 64) if place.tiny else (SHAPES["0.5 B"], 2048)
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16, deviation=WEIGHT_DEVIATION)
    engine = partial(new_engine, folder, dtype="bfloat16", zero_stage=2, recompute=True)
    padded = trained(engine, shape, length=length, ragged=True)
    packed = trained(partial(engine, packing=True, attention=attention), shape, length=length, ragged=True)
    return {
        "gradient norm, relative difference": relative_difference(packed.norms, padded.norms),
        "logprobs at the start, mean difference": float((packed.before - padded.before).abs().mean()),
        "peak / padded": packed.peak_to(padded),
        "time / padded": packed.update_s / padded.update_s,
    }


CHECKS: list[Check] = [packed_rows, packed_flash_attention]
