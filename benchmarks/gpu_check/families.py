"""Pushes to models of several families, in bf16 on the device: what docs/model-families.md shows with a CPU's kernels.

The engine of vLLM is in the check's process, as `make families` has it; eager, and in CUDA graphs, as a server has it.
"""

import os
from dataclasses import replace

import torch
from tests.rollout.families.models import FAMILIES

from .check import Check, Figures, Needs, Place, check

EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3")
DENSE = ("qwen2", "qwen2_untied")


def _pushed(place: Place, family: str, *, eager: bool) -> Figures:
    # Import here what the trainer's checks do without: vLLM, which reads the environment when it is imported.
    from tests.rollout.families.matrix import ENVIRONMENT, try_family

    from .served import CACHE_BYTES, MEMORY_SHARE

    os.environ |= ENVIRONMENT
    memory = {"gpu_memory_utilization": MEMORY_SHARE, "kv_cache_memory_bytes": CACHE_BYTES}
    flags = FAMILIES[family].flags | memory
    in_bf16 = replace(FAMILIES[family], dtype=torch.bfloat16, flags=flags)
    row = try_family(family, in_bf16, place.folder, device=place.device, eager=eager)
    return {
        "as loaded, largest difference": row.as_loaded,
        "after a push, mean difference": row.pushed_mean,
        "without the push, largest difference": row.before_the_push,
        "pushes with layers not probed": float(not row.probed),
        "first answers back to the bit": float(row.restored),
        "in CUDA graphs": float(row.in_graphs),
    }


def _push_to(family: str, *, eager: bool) -> Check:
    def run(place: Place) -> Figures:
        return _pushed(place, family, eager=eager)

    run.__name__ = f"push_to_{family}{'' if eager else '_in_graphs'}"
    how = "eager" if eager else "in CUDA graphs, which hold the addresses of its weights"
    run.__doc__ = f"A push to a tiny model of {family} in bf16, over Gloo, {how}: it computes with what was pushed"
    needs = Needs(memory_gib=8.0, packages=("vllm", "grpo_rollout"))
    return check(needs=needs, light=False, not_on_a_cpu=FAMILIES[family].not_here or "")(run)


CHECKS: list[Check] = [_push_to(family, eager=True) for family in EXPERTS]
CHECKS += [_push_to(family, eager=False) for family in (*DENSE, *EXPERTS)]
