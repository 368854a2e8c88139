"""Keep the frozen linear layers of a model in NF4, four bits a weight (QLoRA, arXiv 2305.14314).

The scale s of a block of 64 consecutive weights is max |w|. A weight is kept as the index i of the entry of `VALUES`
nearest to w / s, and has the value VALUES[i] · s, computed in float32 and rounded once to the model's dtype. Indices
and values are those of bitsandbytes without double quantization.

Quantizing the values again gives the same indices and scales, in bfloat16 as in float32: −1 and 1 are entries, so that
a block keeps its scale, which is a weight and needs no wider dtype; and rounding moves a value by 2⁻⁹ of itself at
most, while the entries are 0.08 apart. So a checkpoint of such values (`grpo-train quantize-base`) is an ordinary model
to a rollout server, and the trainer keeps the same weights in a quarter of the memory. A model with other weights is
refused: its adapter would be trained on another policy than the served one.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..config.model import ModelConfig
from ..errors import UsageError
from .adapter import linear_layers

log = logging.getLogger(__name__)

BLOCK = 64
VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NF4, from appendix E of the paper."""
SLICE_BLOCKS = 2**18
"""Blocks whose values are computed together: 100 MB of temporary memory."""


class NF4Linear(nn.Linear):  # type: ignore[misc]
    """A frozen linear layer. It has no parameter `weight`: reading `weight` computes the values [out, in] anew.

    The backward pass computes them again instead of keeping those of all layers until then.
    """

    def __init__(self, layer: nn.Linear, device: torch.device | str):
        """Quantize the weight of `layer` on `device`; the bits stay where the weight was."""
        super(nn.Linear, self).__init__()  # nn.Linear's would allocate a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_parameter("bias", layer.bias)
        for name, tensor in zip(("packed", "scales"), _quantized(layer.weight.detach().to(device)), strict=True):
            self.register_buffer(name, tensor.to(layer.weight.device), persistent=False)

    @property
    def weight(self) -> torch.Tensor:
        return _values(self.packed, self.scales)[: self.out_features * self.in_features].view(
            self.out_features, self.in_features
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _FrozenProduct.apply(inputs, self)
        return product


class _FrozenProduct(torch.autograd.Function):  # type: ignore[misc]
    """x W' + b, with a gradient for x alone."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: NF4Linear) -> torch.Tensor:
        ctx.layer = layer
        return functional.linear(inputs, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad @ ctx.layer.weight, None


class Weights(Mapping[str, torch.Tensor]):
    """Tensors by name, those in NF4 among them. The values of the latter are computed at each access."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], in_nf4: Mapping[str, NF4Linear]):
        self._tensors, self._in_nf4 = tensors, in_nf4

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._in_nf4[name].weight if name in self._in_nf4 else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from self._in_nf4

    def __len__(self) -> int:
        return len(self._tensors) + len(self._in_nf4)


def quantizable(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the layers that NF4 keeps: all linear ones of the decoder. Fused experts are no linear layers."""
    modules = dict(model.named_modules())
    return {name: modules[name] for name in linear_layers(model) if type(modules[name]) is nn.Linear}


def round_to_nf4(model: nn.Module) -> list[str]:
    """Give every quantizable weight its value in NF4, in place. Returns the names of the weights."""
    layers = quantizable(model)
    with torch.no_grad():
        for layer in layers.values():
            layer.weight.copy_(NF4Linear(layer, layer.weight.device).weight)
    return [f"{name}.weight" for name in layers]


def keep_in_nf4(model: nn.Module, config: ModelConfig, *, device: torch.device | str) -> dict[str, NF4Linear]:
    """Replace every quantizable layer, in place; the quantization is computed on `device`.

    Returns the new layers by the names of their weights. Raises UsageError when a weight is none that NF4 represents.
    """
    found: dict[str, NF4Linear] = {}
    before = _mib(model)
    for name, layer in quantizable(model).items():
        kept = NF4Linear(layer, device)
        if not torch.equal(kept.weight, layer.weight):
            raise UsageError(
                f"model.load_in_4bit would change the model {config.name_or_path}: {name}.weight has values that NF4 "
                f"does not represent in {config.dtype}, and the rollout servers would sample with them",
                hint=f"grpo-train quantize-base {config.name_or_path} FOLDER --dtype {config.dtype}; then set "
                "model.name_or_path to FOLDER and start the servers with it",
            )
        model.set_submodule(name, kept)
        found[f"{name}.weight"] = kept
    log.info("%d linear layers in NF4: the model takes %.1f MiB instead of %.1f", len(found), _mib(model), before)
    return found


def _mib(model: nn.Module) -> float:
    num_bytes: int = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    return num_bytes / 2**20


def nf4_bytes(num_weights: int, width: int) -> float:
    """Return the bytes of weights in NF4, whose scales have `width` bytes each."""
    return num_weights * (0.5 + width / BLOCK)


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two indices a byte [blocks, 32], uint8, the first in the upper half; and the scales [blocks]."""
    blocks = functional.pad(weight.flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    divisors = torch.where(scales > 0, scales, 1).float()
    entries = torch.tensor(VALUES, device=weight.device)
    middles = (entries[1:] + entries[:-1]) / 2
    indices = torch.bucketize(blocks.float() / divisors[:, None], middles, out_int32=True).to(torch.uint8)
    return indices[:, ::2] << 4 | indices[:, 1::2], scales


def _values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the values of all blocks, flat, in the dtype of `scales`."""
    found = torch.empty(len(scales), BLOCK, dtype=scales.dtype, device=scales.device)
    for start in range(0, len(scales), SLICE_BLOCKS):
        part = slice(start, start + SLICE_BLOCKS)
        entries = functional.embedding(packed[part].int(), _pairs(scales.device)).view(-1, BLOCK)
        found[part] = entries.mul_(scales[part, None].float())
    return found.view(-1)


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """The two entries of each byte [256, 2], float32."""
    entries = torch.tensor(VALUES, device=device)
    return torch.stack([entries.repeat_interleave(16), entries.repeat(16)], dim=1)
