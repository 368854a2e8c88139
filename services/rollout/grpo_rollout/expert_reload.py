"""Load experts where they belong as they arrive, in place of vLLM's layerwise reload, which collects a layer first.

vLLM keeps every tensor of a layer until the last one has come. The experts of a layer fill several buckets, so that
each expert would be copied once more before its buffer is reused; then the layer is made anew in fresh memory, packed
into more of it, and copied to where it is served from. The first touch of fresh memory costs several copies.

Here an expert goes straight into the memory that its layer is served from. On a CPU packing works in place, one expert
at a time: a push takes the memory of one packed expert beside the model. vLLM's Triton kernels read experts as they
are, so on a GPU it takes none, and the addresses that CUDA graphs hold stay. A push that fails leaves such a layer
unusable, like every layer that it has reached; nothing is sampled before a whole push is in.

Other kernels of a GPU reorder all experts of a layer at once: vLLM's own way stays.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from vllm._custom_ops import cpu_prepack_moe_weight
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS, get_numel_loaded, materialize_layer
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo
from vllm.model_executor.model_loader.reload.utils import get_layer_size, get_layer_tensors

IN_PLACE = {UnquantizedMoeBackend.CPU, UnquantizedMoeBackend.TRITON}


def load_experts_at_once(model: torch.nn.Module) -> None:
    """Replace the weight loaders of the layers of experts. Call it after the reload was opened."""
    for layer in model.modules():
        info = layerwise.LAYERWISE_INFO.get(layer)
        if info is None or not info.can_load() or info.kernel_tensors is None:
            continue
        method = getattr(layer, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod) and method.unquantized_backend in IN_PLACE:
            for name, tensor in get_layer_tensors(layer).items():
                if name not in SKIP_LOAD_TENSORS:
                    tensor.weight_loader = _loader(layer, name, info)


def _loader(layer: torch.nn.Module, name: str, info: LayerReloadingInfo) -> Callable[..., Any]:
    original = layerwise._get_original_loader(getattr(layer, name))
    signature = inspect.signature(original)

    # vLLM finds the original loader again by the name of this function.
    @wraps(original, assigned=("__doc__", "__annotations__"))
    def online_process_loader(*args: Any, **kwargs: Any) -> Any:
        if not info.can_load():  # the layer is complete
            return None
        if info.load_numel == 0:
            _make_room(layer, info)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments["param"] = getattr(layer, name)
        num_loaded, result = get_numel_loaded(original, bound)
        info.load_numel += num_loaded
        if info.load_numel >= get_layer_size(layer):
            with _packing_in_place():  # of a CPU; there is nothing to pack for Triton
                layerwise._layerwise_process(layer, info)
        return result

    return online_process_loader


def _make_room(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    """Give the layer plain parameters, in the memory of the packed ones where they have the same size."""
    assert info.kernel_tensors is not None  # noqa: S101 - for the type checker
    for name, served in info.kernel_tensors[0].items():
        plain = layer._parameters.get(name)
        # A bias is not packed, and the kernel keeps the one that it was made with.
        if plain is None or not plain.is_meta or plain.dim() != 3:
            continue
        if served.dtype == plain.dtype and served.numel() == plain.numel() and served.is_contiguous():
            room = served.data.view(plain.shape)
            room.__class__, room.__dict__ = plain.__class__, plain.__dict__.copy()
            setattr(layer, name, room)
    materialize_layer(layer, info)


@contextmanager
def _packing_in_place() -> Iterator[None]:
    """Have vLLM pack experts for a CPU one by one, each back into its own place."""
    cpu_moe.cpu_prepack_moe_weight = pack_in_place
    try:
        yield
    finally:
        cpu_moe.cpu_prepack_moe_weight = cpu_prepack_moe_weight


def pack_in_place(weight: torch.Tensor, isa: str) -> torch.Tensor:
    """Pack the experts of `weight` [experts, out, in] for a kernel `isa`, as vLLM's function does. Returns `weight`."""
    packed = torch.empty_like(weight[:1])
    for expert in weight.data.split(1):
        torch.ops._C.prepack_moe_weight(expert, packed, isa)
        expert.copy_(packed)
    return weight.data
