"""The bound of every figure: by check, then by figure. A figure without a bound is shown alone.

Bounds of speed and memory stand a tenth or more beside the figures of one H200 (docs/gpu-check.md) where it measured
them. The others are estimates, to be replaced by the first figures measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo_trainer.config.algorithm import LOSS_TYPES


@dataclass(frozen=True)
class Bound:
    """The limit of a figure. What depends on the speed or the memory of a GPU has `in_trials` False."""

    kind: Literal["at most", "at least"]
    limit: float
    in_trials: bool = True

    def holds(self, value: float | None) -> bool:
        """Whether `value` is within the bound. NaN and None never are."""
        if value is None:
            return False
        return value <= self.limit if self.kind == "at most" else value >= self.limit


def at_most(limit: float, *, in_trials: bool = True) -> Bound:
    return Bound("at most", limit, in_trials)


def at_least(limit: float, *, in_trials: bool = True) -> Bound:
    return Bound("at least", limit, in_trials)


OFFLOAD = {
    "gradient norm, relative difference": at_most(0.02),
    "peak / without offload": at_most(0.75, in_trials=False),
}
CANARY = 0.1
"""Mean difference of the server's logprobs from the trainer's in bf16, as a run on a GPU bounds it."""
FAMILY = {
    "after a push, mean difference": at_most(CANARY),
    "without the push, largest difference": at_least(0.5),
}
PROBED = {"pushes with layers not probed": at_most(0)}
IN_GRAPHS = {"in CUDA graphs": at_least(1, in_trials=False)}
PUSHED = {
    "canary, mean difference": at_most(CANARY),
    "canary, without the next push": at_least(0.3),
    "canary, after the next push": at_most(CANARY),
}
ON_TWO_GPUS = {
    "loss, difference": at_most(1e-4),
    "gradient norm, relative difference": at_most(1e-3),
    "logprobs, difference": at_most(0.01),
    "logprobs, change by the updates": at_least(0.1),
}
TRAINER_LOST = {
    "largest tensor, MiB": at_least(65),
    "killed, s until the server is stale": at_most(60.0),
    "frozen, s until the server is stale": at_most(60.0),
    "canary, after the next push": at_most(CANARY),
}
SERVER_LOST = {
    "largest tensor, MiB": at_least(65),
    "frozen, s of the push": at_most(60.0),
    "frozen, servers that have it": at_least(1),
    "awake, servers that have it": at_least(2),
    "killed, s of the push": at_most(60.0),
    "killed, servers that have it": at_least(1),
    "canary, mean difference": at_most(CANARY),
}
SHARED = {
    f"{shape}, {figure}": bound
    for shape in ("groups", "turns")
    for figure, bound in {
        "gradient norm, relative difference": at_most(0.05),
        "logprobs at the start, mean difference": at_most(0.03),
        "logprobs after the prompt turned around, mean difference": at_least(0.04),
        "time / padded / share of computed tokens": at_most(1.35, in_trials=False),
        "peak / padded": at_most(1.0, in_trials=False),
    }.items()
}


def _throughput(memory: float, mfu: float) -> dict[str, Bound]:
    return {
        "memory / 18 bytes a parameter": at_most(memory, in_trials=False),
        "MFU": at_least(mfu, in_trials=False),
    }


BOUNDS: dict[str, Mapping[str, Bound]] = {
    "head_equals_float64": {
        name: at_most(1e-3)
        for name in (
            "logprobs",
            "entropy",
            "gradient of hidden",
            "gradient of weight",
            "one pass, hidden",
            "one pass, weight",
        )
    },
    "head_at_vocabulary_152000": {
        "one pass, memory / whole logits": at_most(0.25, in_trials=False),
        "one pass, time / whole logits": at_most(1.65, in_trials=False),
        "two passes, memory / whole logits": at_most(0.25, in_trials=False),
        "two passes, time / whole logits": at_most(2.1, in_trials=False),
    },
    "losses_equal_float64": {f"{name}, loss and gradient": at_most(1e-4) for name in LOSS_TYPES},
    "update_in_bf16": {
        "gradient norm, relative difference": at_most(0.05),
        "change of logprobs, correlation": at_least(0.9),
    },
    "zero2_with_offload": OFFLOAD,
    "zero3_with_offload": OFFLOAD,
    "nf4_equals_the_cpu": {
        f"{dtype}, {figure}": at_most(0.0)
        for dtype in ("bfloat16", "float32")
        for figure in ("not the CPU's", "changed by a second")
    },
    "update_in_four_bits": {
        "gradient norm, relative difference": at_most(0.01),
        "logprobs at the start, difference": at_most(0.001),
        "peak / whole": at_most(0.75, in_trials=False),
        "time / whole": at_most(1.5, in_trials=False),
    },
    "update_of_half_a_billion": _throughput(1.6, 0.1),
    "update_of_one_and_a_half_billion": _throughput(1.5, 0.25),
    "update_of_three_billion": _throughput(1.3, 0.3),
    "shared_prefixes": SHARED,
    "shared_prefixes_of_experts": {name: bound for name, bound in SHARED.items() if not name.startswith("turns")},
    "shared_flash_attention": SHARED,
    **{f"push_to_{family}": FAMILY | PROBED for family in ("qwen3_moe", "mixtral", "gpt_oss")},
    "push_to_deepseek_v3": FAMILY,  # there is no probe of latent attention
    **{
        f"push_to_{family}_in_graphs": FAMILY | PROBED | IN_GRAPHS
        for family in ("qwen2", "qwen2_untied", "qwen3_moe", "mixtral", "gpt_oss")
    },
    "push_to_deepseek_v3_in_graphs": FAMILY | IN_GRAPHS,
    "whole_run_on_one_gpu": {
        "steps": at_least(3),
        "steps without a finite reward": at_most(0),
        "canary, mean difference": at_most(CANARY),
        "pushes that the server lacks": at_most(0),
    },
    "pictures_on_one_gpu": {
        "steps": at_least(12),
        "canary, mean difference": at_most(CANARY),
        "accuracy at the end": at_least(0.8),
        "steps that train the tower": at_least(3),
        "canary of these": at_most(CANARY),
    },
    "zero3_over_nccl": ON_TWO_GPUS,
    "rows_of_two_gpus": ON_TWO_GPUS,
    "push_over_nccl": {
        "over NCCL": at_least(1, in_trials=False),
        **PUSHED,
        "s until the killed trainer is noticed": at_most(60.0),
    },
    "tensor_parallelism_2": {"workers": at_least(2), **PUSHED},
    **{f"trainer_lost_{how}": TRAINER_LOST for how in ("in_a_push", "over_nccl")},
    **{f"server_lost_{how}": SERVER_LOST for how in ("in_a_push", "over_nccl")},
    "transfer_of_a_push": {
        "digests that differ": at_most(0),
        "s until the lost member is noticed": at_most(60.0),
    },
}
