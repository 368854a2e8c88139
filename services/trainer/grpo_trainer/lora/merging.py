"""Compute what an adapter adds to the parameters of its model: W + scaling · B A, in float32, one parameter at a time.

The model itself is never merged in place: adding and subtracting a product in bfloat16 would move its weights a little
every time.
"""

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from torch import nn

ADAPTER = "default"
"""PEFT's name for the only adapter of a model. It stands in the names of parameters in memory, never in files."""


@dataclass(frozen=True)
class LowRankDelta:
    """The product that one layer of an adapter adds to one parameter of the model."""

    layer: Any

    @property
    def factors(self) -> list[torch.Tensor]:
        """The parameters A and B, which must be whole for `added_to`."""
        return [self.layer.lora_A[ADAPTER].weight, self.layer.lora_B[ADAPTER].weight]

    def added_to(self, weight: torch.Tensor) -> torch.Tensor:
        """Return weight + scaling · B A in the dtype of `weight`, rounded once."""
        left, right = self._product()
        delta = left.float() @ right.float()
        if getattr(self.layer, "fan_in_fan_out", False):  # GPT-2 stores its weights transposed
            delta = delta.T
        return torch.add(weight.detach().float(), delta, alpha=self.layer.scaling[ADAPTER]).to(weight.dtype)

    def _product(self) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.layer, ParamWrapper) and self.layer.num_experts > 1:
            left, right, _ = self.layer.get_delta_factors(ADAPTER)  # [experts, out, r] and [experts, r, in]
            return left.detach(), right.detach()
        factor_a, factor_b = self.factors
        return factor_b.detach(), factor_a.detach()


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return PEFT's layers by the name that their parameter has in the model's checkpoint."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            parameter = module.parameter_name if isinstance(module, ParamWrapper) else "weight"
            found[f"{checkpoint_name(name)}.{parameter}"] = module
    return found


def checkpoint_name(name: str) -> str:
    """Return the name of a module or parameter as it is without an adapter."""
    return ".".join(part for part in name.split(".") if part != "base_layer")
