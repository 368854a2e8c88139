"""Read and repair vLLM's layerwise reload while a push is incomplete. vLLM has no public interface for this."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO
from vllm.model_executor.model_loader.reload.types import LayerReloadingInfo


def open_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, LayerReloadingInfo]]:
    """Yield the layers that still wait for tensors: name, layer, vLLM's record of the layer."""
    for name, layer in model.named_modules():
        info = LAYERWISE_INFO.get(layer)
        if info is not None and info.can_load():
            yield name, layer, info


def copy_pending_views(model: torch.nn.Module, staging: torch.Tensor) -> int:
    """Copy each tensor that vLLM keeps as a view of `staging`, which the caller will overwrite. Return their number."""
    storage = staging.untyped_storage().data_ptr()
    num_copied = 0
    for _, _, info in open_layers(model):
        for _, bound in info.loaded_weights:
            for argument, value in bound.arguments.items():
                if _lies_in(value, storage):
                    bound.arguments[argument] = value.clone()
                    num_copied += 1
    return num_copied


def _lies_in(value: object, storage: int) -> bool:
    """Return whether `value` is a tensor in the storage at address `storage`."""
    return isinstance(value, torch.Tensor) and not value.is_meta and value.untyped_storage().data_ptr() == storage


def forget_loaded(model: torch.nn.Module) -> None:
    """Discard the tensors of every incomplete layer, so that vLLM restores the layer when it closes the reload.

    Otherwise a layer that arrived in full and could not be put in place (out of memory) would keep parameters on the
    meta device. The next push would not fill them, and nothing would report it.
    """
    for _, _, info in open_layers(model):
        info.load_numel = 0
        info.loaded_weights.clear()


def unloaded_layers(model: torch.nn.Module) -> list[str]:
    """Return the names of layers with parameters of which none has been loaded; vLLM would keep the old parameters.

    Not counted: a layer whose parameters are tied to a loaded layer, and attention layers, which have scales only.
    """
    waiting = {name: (layer, info) for name, layer, info in open_layers(model)}
    loaded = {
        id(parameter)
        for name, layer in model.named_modules()
        if name not in waiting
        for parameter in layer.parameters(recurse=False)
    }
    for _, info in waiting.values():
        # Count a layer that is loaded and still open: a padded vocabulary never arrives in full.
        if info.load_numel > 0 and info.kernel_tensors is not None:
            loaded |= {id(parameter) for parameter in info.kernel_tensors[0].values()}
    return [
        name
        for name, (layer, info) in waiting.items()
        if info.load_numel == 0
        and info.kernel_tensors is not None
        and any(id(parameter) not in loaded for parameter in info.kernel_tensors[0].values())
        and not is_deferred_attention_layer(layer)
    ]


def incomplete_layers(model: torch.nn.Module) -> list[str]:
    """Return the names of layers of which a part has been loaded; vLLM would fill up the rest with anything.

    Not counted: a padded vocabulary, which never arrives in full, and attention layers, which have scales only.
    """
    return [
        name
        for name, layer, info in open_layers(model)
        if 0 < info.load_numel < (info.load_numel_total or 0)
        and not isinstance(layer, VocabParallelEmbedding)
        and not is_deferred_attention_layer(layer)
    ]


class FrozenParts:
    """The layers that no push reaches, because their tensors are declared absent: a vision tower, above all."""

    def __init__(self, model: torch.nn.Module, *, pushed: Sequence[str], absent: Sequence[str]):
        self._pushed, self._absent = (_folders(_own_names(model, names)) for names in (pushed, absent))

    def __contains__(self, layer: str) -> bool:
        """Whether the smallest part of the model around `layer` that has tensors has absent ones only."""
        while layer:
            if layer in self._pushed or layer in self._absent:
                return layer not in self._pushed
            layer = layer.rpartition(".")[0]
        return False


def _own_names(model: torch.nn.Module, names: Sequence[str]) -> Sequence[str]:
    """Translate a checkpoint's names into vLLM's."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return list(mapper.apply_list(list(names))) if mapper is not None else names


def _folders(names: Iterable[str]) -> set[str]:
    """Return all parts of the model that the tensors lie in: of `a.b.weight` `a.b` and `a`."""
    found: set[str] = set()
    for name in names:
        while name := name.rpartition(".")[0]:
            found.add(name)
    return found
