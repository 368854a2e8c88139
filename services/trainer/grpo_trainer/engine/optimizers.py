"""The optimizer of a run: which parameters it decays, and the learning rate of each.

ZeRO gives an optimizer flat parts of tensors, in which parameters lie end to end. So those are offered that treat each
number by itself, or blocks of numbers: Adafactor and Muon need the rows and columns of whole matrices.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from grpo_proto.checkpoint_layout import shape_of

from ..config.optimization import OptimizerConfig
from ..errors import UsageError
from ..lora.adapter import is_b


def check_optimizer(config: OptimizerConfig) -> None:
    """Raise UsageError when the optimizer needs a library that is not installed."""
    if config.name == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise UsageError(
            "optimizer.name adamw_8bit needs bitsandbytes, which is not installed",
            hint="pip install 'grpo-trainer[bitsandbytes]' on every machine of the trainer, or take adamw",
        )


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters that have a gradient. Raises what `check_optimizer` raises."""
    check_optimizer(config)
    groups = _groups(model, config)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.learning_rate)
    betas = config.adam_beta1, config.adam_beta2
    if config.name == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon)
    # Fused, in a single pass over the memory: on a CPU twelve times as fast as torch's default.
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, fused=True)


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the rate of the next update, of an optimizer of torch or DeepSpeed's around it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_ratio"]


def _groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Biases and norms (parameters of one dimension) do not decay, as in transformers' Trainer.

    LoRA+ (arXiv 2402.12354) multiplies the learning rate of an adapter's B.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    vectors = [parameter for _, parameter in trained if len(shape_of(parameter)) <= 1]
    matrices = [(name, parameter) for name, parameter in trained if len(shape_of(parameter)) > 1]
    faster = [parameter for name, parameter in matrices if config.loraplus_lr_ratio is not None and is_b(name)]
    others = [parameter for name, parameter in matrices if config.loraplus_lr_ratio is None or not is_b(name)]
    groups = [
        {"params": others, "weight_decay": config.weight_decay, "lr_ratio": 1.0},
        {"params": faster, "weight_decay": config.weight_decay, "lr_ratio": config.loraplus_lr_ratio},
        {"params": vectors, "weight_decay": 0.0, "lr_ratio": 1.0},
    ]
    return [group for group in groups if group["params"]]
