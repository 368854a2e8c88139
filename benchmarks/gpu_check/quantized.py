"""QLoRA: the values of NF4 on the device; updates of an adapter on a model in NF4, against the same weights whole."""

from functools import partial

import torch
from torch import nn

from grpo_trainer.config.lora import LoraConfig

from .check import Check, Figures, Needs, Place, check
from .made import relative_difference
from .policies import TINY, new_engine, save_policy
from .throughput import SHAPES
from .trained import trained

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@check(needs=Needs(packages=("peft",)))
def nf4_equals_the_cpu(place: Place) -> Figures:
    """Values of NF4, the share that is not the CPU's, and that a second quantization changes"""
    from grpo_trainer.lora.nf4 import NF4Linear  # peft, without which the other checks do

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


@check(needs=Needs(memory_gib=16.0, packages=("deepspeed", "peft")), light=False)
def update_in_four_bits(place: Place) -> Figures:
    """Updates of an adapter on a 1.5 B model in NF4, against the same weights in bf16, activations recomputed"""
    shape, length = (TINY, 16) if place.tiny else (SHAPES["1.5 B"], 1024)
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16, in_nf4=True)
    engine = partial(new_engine, folder, dtype="bfloat16", zero_stage=2, recompute=True, lora=LoraConfig(r=16))
    whole, kept = (trained(partial(engine, load_in_4bit=kept), shape, length=length) for kept in (False, True))
    return {
        "gradient norm, relative difference": relative_difference(kept.norms, whole.norms),
        "logprobs at the start, difference": float((kept.before - whole.before).abs().max()),
        "peak / whole": kept.peak_to(whole),
        "time / whole": kept.update_s / whole.update_s,
    }


CHECKS: list[Check] = [nf4_equals_the_cpu, update_in_four_bits]
