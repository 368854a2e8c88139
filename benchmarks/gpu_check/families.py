"""Pushes to models with experts, in bf16 on the device: what docs/model-families.md shows with a CPU's kernels.

The engine of vLLM is in the check's process, as `make families` has it.
"""

import os
from dataclasses import replace

import torch
from tests.rollout.families.models import FAMILIES

from .check import Check, Figures, Needs, Place, check

CHECKED = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")


def _pushed(place: Place, family: str) -> Figures:
    # Import here what the trainer's checks do without: vLLM, which reads the environment when it is imported.
    from tests.rollout.families.matrix import ENVIRONMENT, try_family

    from .served import MEMORY_SHARE

    os.environ |= ENVIRONMENT
    flags = FAMILIES[family].flags | {"gpu_memory_utilization": MEMORY_SHARE}
    in_bf16 = replace(FAMILIES[family], dtype=torch.bfloat16, flags=flags)
    row = try_family(family, in_bf16, place.folder, device=place.device)
    return {
        "as loaded, largest difference": row.as_loaded,
        "after a push, mean difference": row.pushed_mean,
        "without the push, largest difference": row.before_the_push,
        "pushes with layers not probed": float(not row.probed),
        "first answers back to the bit": float(row.restored),
    }


def _push_to(family: str) -> Check:
    def run(place: Place) -> Figures:
        return _pushed(place, family)

    run.__name__ = f"push_to_{family}"
    run.__doc__ = f"A push to a tiny model of {family} in bf16, over Gloo: its experts are what was pushed"
    needs = Needs(memory_gib=8.0, packages=("vllm", "grpo_rollout"))
    return check(needs=needs, light=False, not_on_a_cpu=FAMILIES[family].not_here or "")(run)


CHECKS: list[Check] = [_push_to(family) for family in CHECKED]
