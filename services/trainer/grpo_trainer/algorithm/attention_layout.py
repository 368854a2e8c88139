"""What attention reads of a row with shared prefixes: which queries see which keys, as tensors for all layers.

Queries stand in the row block by block. Keys and values are gathered by path, so that a key stands in as many paths as
pass through its token.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .prefixes import Forest


@dataclass
class Block:
    """b paths that one call of attention computes, padded to q queries and k keys."""

    start: int
    """The first of their own tokens in the row."""
    num_tokens: int
    """Own tokens, without padding."""
    size: tuple[int, int, int]
    """b, q, k."""
    query_index: torch.Tensor | None
    """Of each query in the block's own tokens [b · q], 0 for padding; None without padding."""
    output_index: torch.Tensor | None
    """The way back: of each own token in the padded queries; None without padding."""
    key_index: torch.Tensor | None
    """Of each key in the row [b · k], 0 for padding; None where the keys are the own tokens as they stand."""
    shared_b: torch.Tensor | None
    """Keys before the first query of each path, a single number if all have as many [1 or b]; None without any: causal
    attention needs no mask then."""
    device: torch.device
    _masks: dict[tuple[int | None, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Return 0 where a query sees a key and -inf elsewhere [1 or b, 1, q, k]; None when causal attention does.

        With a `window` a query sees that many keys, its own included. Made once for each window.
        """
        k = self.size[2]
        if window is not None and window >= k:
            window = None
        if self.shared_b is None and window is None:
            return None
        return self.explicit_mask(window, dtype)

    def explicit_mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """The same, for scores that are computed in the open."""
        _, q, k = self.size
        made = self._masks.get((window, dtype))
        if made is None:
            device = self.device
            shared_b = torch.zeros(1, dtype=torch.int64, device=device) if self.shared_b is None else self.shared_b
            # Padding's queries see the last key: a softmax over nothing would be NaN.
            column_bq = (shared_b[:, None] + torch.arange(q, device=device)).clamp(max=k - 1)
            distance_bqk = column_bq[..., None] - torch.arange(k, device=device)
            hidden_bqk = distance_bqk < 0 if window is None else (distance_bqk < 0) | (distance_bqk >= window)
            made = torch.zeros(hidden_bqk.shape, dtype=dtype, device=device).masked_fill_(hidden_bqk, float("-inf"))
            made = self._masks[window, dtype] = made[:, None]
        return made


@dataclass
class AttentionLayout:
    """The blocks of a row, and the same as flash attention reads it: paths of any length, one after the other."""

    blocks: list[Block]
    key_index: torch.Tensor | None
    """Of all keys in the row, path after path; None where that is the row as it stands."""
    query_ends: torch.Tensor
    """Where the queries of a path begin and end, from 0 [paths + 1], int32."""
    key_ends: torch.Tensor
    longest: tuple[int, int]
    """Queries and keys of a path."""
    num_tokens: int
    """U: length of the row."""
    group: Any = None
    """The `SequenceGroup` that computes the row together, if not this rank alone."""
    reads: int = 0
    """How many attention layers have read it: a model that hands it on to a part of its layers computes something
    else."""

    @property
    def equal_rows(self) -> tuple[int, int] | None:
        """Number and length of the sequences, if all are as long and share nothing; None otherwise.

        They can be rows of their own, without position ids: with these every token has a rotary embedding of its own.
        """
        block = self.blocks[0]
        b, q, _ = block.size
        return (b, q) if len(self.blocks) == 1 and block.key_index is None else None


def attention_layout(forest: Forest, device: torch.device | str) -> AttentionLayout:
    """Lay a row out for attention, on `device`."""
    device = torch.device(device)

    def put(array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    in_order = [number for block in forest.blocks for number in block]
    own, lengths = [forest.own_Q[i] for i in in_order], [len(forest.paths_Q[i]) for i in in_order]
    keys = np.concatenate([forest.paths_Q[i] for i in in_order])
    as_it_stands = len(keys) == forest.num_unique
    query_ends, key_ends = (np.cumsum([0, *sizes], dtype=np.int32) for sizes in (own, lengths))
    return AttentionLayout(
        blocks=[_block(forest, members, device) for members in forest.blocks],
        key_index=None if as_it_stands else put(keys),
        query_ends=torch.from_numpy(query_ends).to(device),
        key_ends=torch.from_numpy(key_ends).to(device),
        longest=(max(own), max(lengths)),
        num_tokens=forest.num_unique,
    )


def _block(forest: Forest, members: list[int], device: torch.device) -> Block:
    own_b = np.array([forest.own_Q[i] for i in members])
    length_b = np.array([len(forest.paths_Q[i]) for i in members])
    b, q, k = len(members), int(own_b.max()), int(length_b.max())
    num_tokens, shared_b = int(own_b.sum()), length_b - own_b
    is_own_bq = np.arange(q) < own_b[:, None]
    query_index, output_index, key_index = None, None, None
    if num_tokens < b * q:
        query_bq = np.zeros((b, q), np.int64)
        query_bq[is_own_bq] = np.arange(num_tokens)
        query_index, output_index = query_bq.ravel(), np.flatnonzero(is_own_bq)
    if num_tokens < b * q or shared_b.any():
        key_bk = np.zeros((b, k), np.int64)
        key_bk[np.arange(k) < length_b[:, None]] = np.concatenate([forest.paths_Q[i] for i in members])
        key_index = key_bk.ravel()
    if (shared_b == shared_b[0]).all():
        shared_b = shared_b[:1]

    def put(array: NDArray[np.int64] | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device)

    return Block(
        start=forest.starts_Q[members[0]],
        num_tokens=num_tokens,
        size=(b, q, k),
        query_index=put(query_index),
        output_index=put(output_index),
        key_index=put(key_index),
        shared_b=put(shared_b) if shared_b.any() else None,
        device=device,
    )
