"""Resume on another number of ranks: lay the optimizer's state out anew.

Each rank of DeepSpeed holds, and saves, its part of flat tensors in which parameters lie end to end. The parts of this
rank are put together from the files of all ranks that saved, parameter by parameter, and handed to DeepSpeed as the
state that this rank would have saved. The files are mapped into memory: no rank holds more than its own parts.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from .deepspeed_files import load_file

MASTER = "master"
"""Names the float32 weights beside the keys of the optimizer's state, such as exp_avg."""

Pieces = dict[str, dict[str, list[torch.Tensor]]]
"""By parameter and key: its numbers, in pieces by the ranks that saved them. ZeRO-3 pads the last one with zeros."""


class Fragment(NamedTuple):
    """`length` numbers of a parameter, from its number `first` on, lie in flat tensor `group` from `start` on."""

    name: str
    group: int
    start: int
    first: int
    length: int
    numel: int
    """Of the whole parameter."""


def load_from_other_ranks(engine: Any, tag: Path, *, num_ranks: int, strict: bool) -> None:
    """Load what `num_ranks` ranks saved in the folder `tag` into a DeepSpeed engine with a ZeRO optimizer.

    `strict`: the files hold all parameters, not an adapter's alone. Raises OSError when a file is not there.
    """
    model = _mapped(tag, "*mp_rank_00_model_states.pt")
    saved = [_mapped(tag, f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt") for rank in range(num_ranks)]
    states = [of_rank["optimizer_state_dict"] for of_rank in saved]
    optimizer = engine.optimizer
    sharded = hasattr(optimizer, "fp16_groups")
    if sharded:
        optimizer.checkpoint_event_prologue()
    # ZeRO-3 saves frozen parameters in parts, too. They are those of the model that the run began with.
    engine.load_module_state_dict(model | {"frozen_param_fragments": None}, strict=strict)
    own = _own_state(engine, read_pieces(states, model), states[0], sharded=sharded)
    world_size = torch.distributed.get_world_size()
    optimizer.load_state_dict([own] * world_size, load_optimizer_states=True, load_from_fp32_weights=True)
    if sharded:
        optimizer.checkpoint_event_epilogue()


def _mapped(tag: Path, pattern: str) -> dict[str, Any]:
    found = sorted(tag.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{tag} holds no {pattern}")
    return load_file(found[0], mmap=True)


def read_pieces(states: Sequence[dict[str, Any]], model: dict[str, Any]) -> Pieces:
    """Take the flat tensors of all ranks that saved apart; `model` is a rank's file of the model."""
    pieces: Pieces = defaultdict(lambda: defaultdict(list))
    for state in states:
        for name, piece in _pieces_of_rank(state, model, num_ranks=len(states)):
            for key, numbers in piece.items():
                pieces[name][key].append(numbers)
    return pieces


def _pieces_of_rank(
    state: dict[str, Any], model: dict[str, Any], *, num_ranks: int
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    if "fp32_flat_groups" in state:
        for group, shapes in enumerate(model["param_shapes"]):
            flat = {MASTER: state["fp32_flat_groups"][group]} | _flat_state(state["optimizer_state_dict"], group)
            start = 0
            for name, shape in shapes.items():
                count = -(-shape.numel() // num_ranks)
                yield name, {key: numbers[start : start + count] for key, numbers in flat.items()}
                start += count
        return
    for group, addresses in enumerate(state["param_slice_mappings"]):
        master = state["single_partition_of_fp32_groups"][group]
        flat = {MASTER: master} | _flat_state(state["base_optimizer_state"], group)
        for name, address in addresses.items():
            yield name, {key: numbers[address.start : address.start + address.numel] for key, numbers in flat.items()}


def _flat_state(optimizer: dict[str, Any], group: int) -> dict[str, torch.Tensor]:
    """The flat tensors of torch's optimizer state; empty before the first update that was made."""
    return {key: value for key, value in optimizer["state"].get(group, {}).items() if value.dim() > 0}


def fragment_of(pieces: Sequence[torch.Tensor], *, first: int, length: int, numel: int) -> torch.Tensor:
    """Return `length` numbers of a parameter of `numel`, from `first` on; what is beyond its end is 0."""
    found, end, start = [], min(first + length, numel), 0
    for piece in pieces:
        found.append(piece[max(first - start, 0) : max(end - start, 0)])
        start += len(piece)
    joined = torch.cat(found)
    return functional.pad(joined, (0, length - len(joined)))


def _own_state(engine: Any, pieces: Pieces, template: dict[str, Any], *, sharded: bool) -> dict[str, Any]:
    """Return the optimizer's state of this rank; what is not of parameters is that of `template`, another rank's."""
    optimizer = engine.optimizer
    flat_groups = (
        optimizer.fp32_partitioned_groups_flat
        if sharded
        else [group["params"][0] for group in optimizer.optimizer.param_groups]
    )
    keys = next(iter(pieces.values())).keys()
    flat = {key: [torch.zeros(len(group)) for group in flat_groups] for key in keys}
    for name, group, start, first, length, numel in _fragments(engine, sharded=sharded):
        for key, of_key in flat.items():
            of_key[group][start : start + length] = fragment_of(
                pieces[name][key], first=first, length=length, numel=numel
            )
    masters = flat.pop(MASTER)
    torch_key = "optimizer_state_dict" if sharded else "base_optimizer_state"
    torch_state = template[torch_key]
    numbers = range(len(flat_groups))
    step = {key: value for key, value in torch_state["state"].get(0, {}).items() if value.dim() == 0}
    state = {  # each group has a step of its own, which torch counts up in place
        group: {key: value.clone() for key, value in step.items()} | {key: flat[key][group] for key in flat}
        for group in numbers
        if flat
    }
    param_groups = torch_state["param_groups"]
    if sharded:
        group_of = optimizer.sub_group_to_group_id
        param_groups = [
            group | {"params": [flat_group for flat_group in numbers if group_of[flat_group] == number]}
            for number, group in enumerate(param_groups)
        ]
    return template | {
        "fp32_flat_groups" if sharded else "single_partition_of_fp32_groups": masters,
        torch_key: {"state": state, "param_groups": param_groups},
    }


def _fragments(engine: Any, *, sharded: bool) -> Iterator[Fragment]:
    """What this rank holds of the parameters that are trained."""
    if sharded:
        rank = torch.distributed.get_rank()
        for group, parameters in enumerate(engine.optimizer.fp16_groups):
            start = 0
            for parameter in parameters:
                length = parameter.partition_numel()
                name = engine.param_names[parameter]
                yield Fragment(name, group, start, rank * length, length, parameter.ds_numel)
                start += length
        return
    for parameter, name in engine.param_names.items():
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is not None:
            here, of_parameter = mapping.hp_fragment_address, mapping.lp_fragment_address
            group = mapping.param_group_index
            yield Fragment(name, group, here.start, of_parameter.start, of_parameter.numel, parameter.numel())
