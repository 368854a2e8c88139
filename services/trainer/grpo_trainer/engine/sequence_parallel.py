"""Sequence parallelism: ranks that compute the row of a micro-batch together, each a share of its tokens.

A long sequence then needs a share of the memory on each of them. All of a decoder but attention computes token by
token, so that a row with every token once (`shared_attention.py`) is dealt out like cards: of S ranks, rank r computes
tokens r, r + S, r + 2S and so on. Around attention they exchange: each rank gets all tokens for its share of the heads,
and gives back all heads for their own tokens (DeepSpeed-Ulysses, arXiv 2309.14509). Dealt one by one, trained tokens
and with them the output head's work are spread evenly, wherever they stand in the row.

Behind the head every rank of a group has the logprobs of all trained tokens and computes the whole loss, also one that
reads whole episodes. Its gradient reaches this rank's own tokens alone: what the ranks' gradients add up to is that of
the whole row.

    u = ⌈U / S⌉ tokens of a rank
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..algorithm.attention_layout import AttentionLayout
from ..algorithm.image_tokens import ImageInputs
from ..errors import UsageError

Attention = Callable[..., tuple[torch.Tensor, None]]


@dataclass(frozen=True)
class SequenceGroup:
    """S ranks that follow each other, at least two."""

    ranks: dist.ProcessGroup
    size: int
    """S."""
    rank: int
    """Number of this rank in the group."""

    def deal(
        self,
        input_ids_BL: torch.Tensor,
        position_ids_BL: torch.Tensor | None,
        layout: AttentionLayout,
        images: ImageInputs | None,
    ) -> tuple[torch.Tensor, torch.Tensor, ImageInputs | None]:
        """Have the group compute a row: return this rank's token ids [1, u], their position ids [1, u] or [3, 1, u],
        and its places of images."""
        layout.group = self
        if position_ids_BL is None:
            number, length = layout.equal_rows or input_ids_BL.shape
            position_ids_BL = torch.arange(length, device=input_ids_BL.device).repeat(number)[None]
        if images is not None:
            is_own = images.place_M % self.size == self.rank
            own_names = images.names_M[is_own.cpu().numpy()]
            images = replace(images, place_M=images.place_M[is_own] // self.size, names_M=own_names)
            images = images if len(own_names) else None
        position_ids = position_ids_BL.flatten(-2).unsqueeze(-2)
        return self._own(input_ids_BL.reshape(1, -1)), self._own(position_ids), images

    def own_of(self, hidden_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Given places in the row [N]: which of the N are on this rank, and where in its u tokens these stand."""
        index = (hidden_N % self.size == self.rank).nonzero()[:, 0]
        return index, hidden_N[index] // self.size

    def whole_outputs(self, own: tuple[torch.Tensor, ...], index: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        """Return what the output head says of all N tokens, of which this rank has those at `index`: vectors are put
        together, and scalars added up."""
        return tuple(_Whole.apply(part, index, size, self) if part.dim() else self._sum(part) for part in own)

    def whole_rows(self, own: tuple[torch.Tensor, ...], layout: AttentionLayout) -> tuple[torch.Tensor, ...]:
        """Return what each layer says of all tokens of the row [U, E], of which this rank has [u, E]."""
        if not own:
            return ()
        rows = _Gather.apply(torch.stack(own, dim=1), self)[: layout.num_tokens]
        return tuple(rows.unbind(dim=1))

    def to_heads(self, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Exchange [1, heads, u, width] for [1, heads / S, U, width]."""
        heads, own, width = tokens.shape[1:]
        exchanged = _Exchange.apply(tokens.reshape(self.size, heads // self.size, own, width), self)
        # The token of rank s at place i of its share is number i · S + s of the row.
        row = exchanged.permute(1, 2, 0, 3).reshape(1, heads // self.size, own * self.size, width)
        return row[:, :, :num_tokens]

    def to_tokens(self, heads: torch.Tensor) -> torch.Tensor:
        """Exchange [1, U, heads / S, width] for [1, u, heads, width]."""
        num_tokens, own_heads, width = heads.shape[1:]
        own = -(-num_tokens // self.size)
        padded = nn.functional.pad(heads[0], (0, 0, 0, 0, 0, own * self.size - num_tokens))
        exchanged = _Exchange.apply(padded.unflatten(0, (own, self.size)).transpose(0, 1), self)
        return exchanged.transpose(0, 1).reshape(1, own, self.size * own_heads, width)

    def _sum(self, own: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' scalars, with the gradient of this rank's."""
        total = own.detach().clone()
        dist.all_reduce(total, group=self.ranks)
        return own + (total - own.detach())

    def _own(self, row: torch.Tensor) -> torch.Tensor:
        """[..., U] → [..., u]; token 0 stands where a share has no token."""
        padded = nn.functional.pad(row, (0, -row.shape[-1] % self.size))
        return padded[..., self.rank :: self.size].contiguous()


def join_sequence_group(size: int, *, timeout_s: float) -> SequenceGroup | None:
    """Join this rank's group of `size`; None for a size of 1. A collective of all ranks.

    Raises UsageError when the ranks do not make whole groups.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    check_groups(size, world_size)
    if size == 1:
        return None
    groups = [range(first, first + size) for first in range(0, world_size, size)]
    own, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups], timeout=timedelta(seconds=timeout_s))
    return SequenceGroup(own, size, rank % size)


def check_groups(size: int, world_size: int) -> None:
    """Raise UsageError when the ranks do not make whole groups of `size`."""
    if world_size % size:
        raise UsageError(
            f"deepspeed.sequence_parallel_size is {size}, and {world_size} ranks do not make whole groups of {size}",
            hint="choose a divisor of the number of ranks, or start more of them (deepspeed.nproc_per_node)",
        )


def in_exchange(attention: Attention) -> Attention:
    """Have `attention` compute a share of the heads for all tokens, where the layout names a group of ranks."""

    @wraps(attention)
    def of_group(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        shared_prefixes: AttentionLayout | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        layout = shared_prefixes
        if layout is None or layout.group is None:
            return attention(module, query, key, value, attention_mask, shared_prefixes=layout, **others)
        group: SequenceGroup = layout.group
        repeats = group.size // gcd(key.shape[1], group.size)  # a key head can be needed on several ranks
        if repeats > 1:
            key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key, value))
        query, key, value = (group.to_heads(tensor, layout.num_tokens) for tensor in (query, key, value))
        if (sinks := others.get("s_aux")) is not None:
            others["s_aux"] = sinks.chunk(group.size)[group.rank]
        # transformers' flash attention takes these, of this rank's tokens, for the ends of packed sequences.
        others.pop("position_ids", None)
        if (rows := layout.equal_rows) is not None:
            query, key, value = (tensor[0].unflatten(1, rows).transpose(0, 1) for tensor in (query, key, value))
        found, _ = attention(module, query, key, value, attention_mask, shared_prefixes=layout, **others)
        return group.to_tokens(found.flatten(0, 1)[None]), None

    return of_group


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Part s of [S, ...] goes to rank s, and its part for this rank stands there; the gradient goes the same way
    back."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchanged(gradient, ctx.group), None


def _exchanged(parts: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
    given = parts.contiguous()
    received = torch.empty_like(given)
    dist.all_to_all_single(received, given, group=group.ranks)
    return received


class _Whole(torch.autograd.Function):  # type: ignore[misc]
    """The parts that the ranks have of a vector, put together; this rank's part gets its own gradient."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, index: torch.Tensor, size: int, group: SequenceGroup) -> torch.Tensor:
        ctx.save_for_backward(index)
        whole = own.new_zeros(size).index_copy_(0, index, own)
        dist.all_reduce(whole, group=group.ranks)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None, None


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """[u, ...] of each rank → [S · u, ...] in the order of the row; this rank's tokens get their own gradient."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
        ctx.group = group
        own = own.contiguous()
        of_ranks = own.new_empty(group.size, *own.shape)
        dist.all_gather(list(of_ranks.unbind()), own, group=group.ranks)
        return of_ranks.transpose(0, 1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        group: SequenceGroup = ctx.group
        return gradient[group.rank :: group.size].contiguous(), None
