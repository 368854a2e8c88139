"""DeepSpeed's configuration, and the gradient clip where DeepSpeed has none. Imports no DeepSpeed."""

from typing import Any, Self

import torch
from torch import nn

from ..config.model import ModelConfig
from ..config.optimization import DeepSpeedConfig, OptimizerConfig

REDUCE_BUCKET_NUMBERS = 50_000_000
"""Number of float32 gradients reduced together: 200 MB on every GPU. DeepSpeed's default is ten times as much."""


def deepspeed_settings(model: ModelConfig, optimizer: OptimizerConfig, sharing: DeepSpeedConfig) -> dict[str, Any]:
    """Return DeepSpeed's configuration. bf16 weights have float32 masters; gradients are summed in float32 everywhere.

    `zero_stage` 0 in bf16 maps to DeepSpeed's stage 1, which shards the optimizer's state only. DeepSpeed's stage 0
    would sum the gradients of micro-batches in bf16, and make an update with zero gradients at its start.
    """
    bf16 = model.dtype == "bfloat16"
    stage = 1 if bf16 and sharing.zero_stage == 0 else sharing.zero_stage
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": sharing.overlap_comm,
        "contiguous_gradients": True,
        "reduce_bucket_size": REDUCE_BUCKET_NUMBERS,
    }
    if sharing.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        # We count micro-batches ourselves: the token budget decides their number, and step() ends an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # For `coalesce_grad_reduction` DeepSpeed must manage them; with one step of accumulation that changes nothing.
        "managed_gradient_accumulation": sharing.coalesce_grad_reduction,
        # ClipBareOptimizer clips for the bare optimizer of ZeRO 0 in float32.
        "gradient_clipping": optimizer.max_grad_norm if stage > 0 else 0.0,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }


def inference_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a frozen model sharded like the policy: no optimizer, so nothing to offload."""
    zero = {key: value for key, value in settings["zero_optimization"].items() if key != "offload_optimizer"}
    return settings | {"zero_optimization": zero}


def judge_by_the_norm(optimizer: Any, device: torch.device) -> None:
    """Have DeepSpeed's optimizer of ZeRO-2 see by the norm of the gradient alone whether it is finite.

    In bf16 it looks at the norm, and before that at the gradient of each parameter: with 24 layers 3,770 of the 14,100
    operations of an update of two micro-batches, which a GPU waits for. What is not finite, of any parameter on any
    rank, makes the norm so on all of them. ZeRO-3 looks at one flat buffer, an offloaded optimizer at what it copies:
    both stay as they are.
    """
    none_found = torch.zeros(1, dtype=torch.bool, device=device)
    optimizer.has_overflow_partitioned_grads_serial = lambda: none_found


class ClipBareOptimizer:
    """Clip the gradient, and skip the update when it is not finite, where DeepSpeed does not.

    Under ZeRO 0 in float32 DeepSpeed calls the optimizer directly: it clips, but neither reports the norm nor checks
    that it is finite. Gradients are reduced by then, so that all ranks decide alike.
    """

    def __init__(self, max_grad_norm: float):
        self.max_grad_norm = max_grad_norm
        self.grad_norm = torch.tensor(0.0)

    @classmethod
    def attach(cls, optimizer: torch.optim.Optimizer, settings: dict[str, Any], max_grad_norm: float) -> Self | None:
        """Clip before every step of `optimizer`. Returns None when DeepSpeed wraps it and clips itself."""
        if settings["zero_optimization"]["stage"] > 0:
            return None
        clip = cls(max_grad_norm)
        optimizer.register_step_pre_hook(clip)
        return clip

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        if not torch.isfinite(self.grad_norm):
            # The optimizer skips parameters without a gradient.
            for parameter in parameters:
                parameter.grad = None
