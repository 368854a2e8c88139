"""The tensors of a model as its checkpoint has them: names, shapes, and how each is made from the model's parameters.

transformers keeps some tensors in another shape than the checkpoint (all experts of a layer in one parameter), and
under other names. What is pushed has the names and the layout of the checkpoint, which is what vLLM loads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

Shape = tuple[int, ...]
Tensors = dict[str, torch.Tensor]


class LayoutError(ValueError):
    """A tensor of the checkpoint cannot be made from the model's parameters."""


@dataclass(frozen=True)
class Piece:
    """Tensors of a checkpoint that are made together, from the same `sources` in the model."""

    sources: tuple[str, ...]
    """Names of parameters and buffers of the model."""
    shapes: Mapping[str, Shape]
    """Of the checkpoint's tensors, by their names there, in the order of pushing."""
    dtype: torch.dtype
    restore: Callable[[Sequence[torch.Tensor]], Tensors]
    """Make the checkpoint's tensors from the sources' values. They may be views of these."""


def checkpoint_layout(model: PreTrainedModel, shapes: Mapping[str, Shape]) -> list[Piece]:
    """Plan how the tensors of a checkpoint are made from `model`, in the order of the model's own parameters.

    Args:
        model: of any device, with shapes as `shape_of` sees them.
        shapes: what the checkpoint's headers say, by name.

    Left out: tensors that the model does not have (of a part that its class leaves out), and tied ones but the first.
    Every tensor is planned on meta tensors, so that a plan that exists can be carried out. Raises LayoutError when a
    tensor cannot be made as the checkpoint has it.
    """
    # What the library does when it loads a checkpoint (`convert_and_load_state_dict_in_model`), on names and shapes.
    conversions = get_model_conversion_mapping(model)
    own = model.state_dict(keep_vars=True)
    loading: dict[str, WeightRenaming | WeightConverter] = {}
    members: dict[str, list[str]] = {}
    renamings, converters = _split(conversions)
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    for name in sorted(shapes, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        if target not in own and name in own:
            target, pattern = name, None
        if target not in own:
            continue
        if pattern is None:
            step = loading.setdefault(target, WeightRenaming(name, target))
        else:
            step = loading.setdefault(target, deepcopy(by_pattern[pattern]))
        step.add_tensor(target, name, pattern or name, torch.empty(shapes[name], device="meta"))
        members.setdefault(target, []).append(name)

    used = [conversion for conversion in conversions if conversion.was_used()]
    wanted, pieces = _first_of_tied(own), []
    for target, step in loading.items():
        sources = tuple(step.convert(target, model=model, config=model.config))
        if not wanted.isdisjoint(sources):
            pieces.append(_piece(model, own, members[target], sources, step, used, shapes))
    order = {name: number for number, name in enumerate(own)}
    return sorted(pieces, key=lambda piece: order[piece.sources[0]])


def plain_layout(tensors: Mapping[str, torch.Tensor]) -> list[Piece]:
    """Every tensor as it is, under its own name."""
    return [_unchanged(name, name, tensor, shape_of(tensor)) for name, tensor in tensors.items()]


def shape_of(tensor: torch.Tensor) -> Shape:
    """The whole tensor's shape; DeepSpeed keeps it aside when it shards a parameter."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def _piece(
    model: PreTrainedModel,
    own: Tensors,
    names: list[str],
    sources: tuple[str, ...],
    step: WeightRenaming | WeightConverter,
    used: list[Any],
    shapes: Mapping[str, Shape],
) -> Piece:
    tensor = own[sources[0]]
    if not isinstance(step, WeightConverter):
        if shape_of(tensor) != shapes[names[0]]:
            raise LayoutError(f"{names[0]} has shape {list(shapes[names[0]])} and the model's {list(shape_of(tensor))}")
        return _unchanged(names[0], sources[0], tensor, shapes[names[0]])
    restore = _Reverse(model, sources, names, used)
    made = restore([torch.empty(shape_of(own[source]), dtype=own[source].dtype, device="meta") for source in sources])
    for name in names:
        if name not in made or tuple(made[name].shape) != shapes[name]:
            raise LayoutError(
                f"{name} of shape {list(shapes[name])} cannot be made from {', '.join(sources)} "
                f"of {type(model).__name__}: transformers' conversion gives "
                + (f"shape {list(made[name].shape)}" if name in made else f"{', '.join(list(made)[:3])}")
            )
    return Piece(sources, {name: shapes[name] for name in names}, tensor.dtype, restore)


def _unchanged(name: str, source: str, tensor: torch.Tensor, shape: Shape) -> Piece:
    return Piece((source,), {name: shape}, tensor.dtype, lambda values: {name: values[0]})


class _Reverse:
    """The conversion of some sources back to the checkpoint's tensors, as transformers does it when it saves."""

    def __init__(self, model: PreTrainedModel, sources: tuple[str, ...], names: list[str], used: list[Any]):
        self.model, self.sources, self.names = model, sources, names
        reverse = [conversion.reverse_transform() for conversion in used[::-1]]
        renamings, converters = _split(reverse)
        self.places = [rename_source_key(source, renamings, converters, reverse=True) for source in sources]
        (self.converter,) = {
            id(converter): converter
            for converter in converters
            for _, pattern in self.places
            if pattern in converter.source_patterns
        }.values()

    def __call__(self, values: Sequence[torch.Tensor]) -> Tensors:
        target = self.places[0][0]
        for source, (_, pattern), value in zip(self.sources, self.places, values, strict=True):
            self.converter.add_tensor(target, source, pattern, value)
        with _Views():
            made = self.converter.convert(target, model=self.model, config=self.model.config)
        return dict(_renamed(made, self.names))


class _Views(TorchFunctionMode):  # type: ignore[misc]
    """Leave out the copies at the end of transformers' operations: what they make is copied into a bucket anyway.

    Otherwise all experts of a layer are copied to fresh memory at once, whose first touch costs more than the copy.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.Tensor.contiguous else func(*args, **(kwargs or {}))


def _renamed(made: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint of the base model alone has no prefix, or one of a larger model has one more."""
    for name, value in made.items():
        tensor = value[0] if isinstance(value, list) else value
        if name in names:
            yield name, tensor
            continue
        alike = [known for known in names if known.endswith("." + name) or name.endswith("." + known)]
        yield (alike[0] if len(alike) == 1 else name), tensor


def _split(conversions: Sequence[Any]) -> tuple[list[WeightRenaming], list[WeightConverter]]:
    return (
        [conversion for conversion in conversions if isinstance(conversion, WeightRenaming)],
        [conversion for conversion in conversions if isinstance(conversion, WeightConverter)],
    )


def _first_of_tied(own: Tensors) -> set[str]:
    """Of several names of one tensor only the first, as in `named_parameters`."""
    first: dict[int, str] = {}
    for name, tensor in own.items():
        first.setdefault(id(tensor), name)
    return set(first.values())
