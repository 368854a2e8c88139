"""Load weights where they belong as they arrive, in place of vLLM's layerwise reload, which collects a layer first.

vLLM keeps every tensor of a layer until the last one has come. The experts of a layer fill several buckets, so that
each expert would be copied once more before its buffer is reused; then the layer is made anew in fresh memory, packed
into more of it, and copied to where it is served from. The first touch of fresh memory costs several copies, and on a
GPU vLLM has left none: an embedding takes three times itself, the experts of a layer twice themselves.

Here a tensor goes straight into the memory that its layer is served from. On a CPU experts alone: they are packed in
place, one at a time, so that a push takes the memory of one packed expert beside the model. On a GPU experts that
Triton computes, and unquantized linear layers and embeddings, are served as they come, and a push takes no memory for
them; the addresses that CUDA graphs hold stay. A push that fails leaves such a layer unusable, like every layer that
it has reached; nothing is sampled before a whole push is in.

Other kernels for experts reorder all those of a layer at once: vLLM's own way stays, as for quantized layers.
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
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS, get_numel_loaded, materialize_layer
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo
from vllm.model_executor.model_loader.reload.utils import get_layer_size, get_layer_tensors
from vllm.platforms import current_platform

IN_PLACE = {UnquantizedMoeBackend.CPU, UnquantizedMoeBackend.TRITON}


def load_in_place(model: torch.nn.Module) -> None:
    """Replace the weight loaders of the layers that can be loaded so. Call it after the reload was opened."""
    for layer in model.modules():
        info = layerwise.LAYERWISE_INFO.get(layer)
        if info is None or not info.can_load() or info.kernel_tensors is None:
            continue
        if _is_served_as_it_comes(getattr(layer, "quant_method", None)):
            for name, tensor in get_layer_tensors(layer).items():
                if name not in SKIP_LOAD_TENSORS:
                    tensor.weight_loader = _loader(layer, name, info)


def _is_served_as_it_comes(method: object) -> bool:
    """Whether the weights of a layer can be loaded, and packed where they are packed, in the memory they have."""
    if isinstance(method, UnquantizedFusedMoEMethod):
        return method.unquantized_backend in IN_PLACE
    # A CPU packs these as a whole, into other memory.
    return type(method) in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod) and not current_platform.is_cpu()


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
            with _packing_in_place():  # on a CPU; on a GPU there is nothing to pack
                layerwise._layerwise_process(layer, info)
        return result

    return online_process_loader


def _make_room(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    """Give the layer plain parameters, in the memory of the packed ones where they have the same size."""
    assert info.kernel_tensors is not None  # noqa: S101 - for the type checker
    for name, served in info.kernel_tensors[0].items():
        plain = layer._parameters.get(name)
        # The bias of experts is not packed, and the kernel keeps the one that it was made with.
        if plain is None or not plain.is_meta or not name.endswith("weight"):
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
