"""Batching: a plan (`planning.py`) → the micro-batches of every rank.

Nothing that is learnt depends on how a batch is cut, but for a load-balancing loss. A token's weight is fixed before,
from counts over the whole update on all ranks (`decisions.py`), and the loss of an update is the sum Σ_n w_n · l_n over
all its tokens, wherever they end up. The sequences of an episode stay together, because ratios of an episode are
products over all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .attention_layout import AttentionLayout, attention_layout
from .image_tokens import ImageInputs, Images, are_places
from .planning import Plan
from .prefixes import PrefixSharing, grow
from .sequences import MicroBatch, TrainingSequence

PlanOfRank = list[list[list[int]]]
"""Numbers of a rank's own sequences by update and micro-batch."""


def parts_of_ranks(
    sequences: Sequence[TrainingSequence], plan: Plan, world_size: int
) -> tuple[list[list[TrainingSequence]], list[PlanOfRank]]:
    """The sequences of each rank, and its plan with their numbers."""
    parts: list[list[TrainingSequence]] = []
    plans: list[PlanOfRank] = []
    for rank in range(world_size):
        own = [i for update in plan for numbers in update[rank] for i in numbers]
        number_of = {i: number for number, i in enumerate(own)}
        parts.append([sequences[i] for i in own])
        plans.append([[[number_of[i] for i in numbers] for numbers in update[rank]] for update in plan])
    return parts, plans


def tokens_of_updates(sequences: Sequence[TrainingSequence], plan: Plan) -> list[int]:
    """Trained tokens of each update, over all micro-batches and ranks, skipped sequences included."""
    return [sum(s.num_trained for s in sequences if s.update == update) for update in range(len(plan))]


def micro_batches(
    own: Sequence[TrainingSequence],
    plan: PlanOfRank,
    update_tokens: Sequence[int],
    *,
    version: int,
    pad_token_id: int,
    device: torch.device | str,
    prefixes: PrefixSharing | None = None,
    images: Images | None = None,
) -> list[list[MicroBatch]]:
    """The micro-batches of one rank, by optimizer update. `version` is the policy that is trained on them; `images` are
    those of the sequences, if they have any."""
    return [
        [
            collate(
                [own[i] for i in numbers],
                version=version,
                update_tokens=num_tokens,
                pad_token_id=pad_token_id,
                device=device,
                prefixes=prefixes,
                images=images,
            )
            for numbers in of_update
        ]
        for of_update, num_tokens in zip(plan, update_tokens, strict=True)
    ]


def collate(
    sequences: Sequence[TrainingSequence],
    *,
    version: int,
    update_tokens: int,
    pad_token_id: int,
    device: torch.device | str,
    prefixes: PrefixSharing | None = None,
    images: Images | None = None,
) -> MicroBatch:
    """Put `sequences` into tensors, in padded rows or, with `prefixes`, in one in which every needed token stands once;
    none make the empty micro-batch (see `MicroBatch`).

    Raises ValueError for a trained token 0, and for a trained stale token without a logprob: nothing else says what it
    was sampled from.
    """
    for sequence in sequences:
        _check(sequence, version)
    if prefixes is None:
        rows = _padded([sequence.token_ids_L for sequence in sequences], pad_token_id, images)
    else:
        rows = _shared([sequence.needed_ids for sequence in sequences], pad_token_id, device, images)
    seen = rows.see(images)
    counts_Q = [sequence.num_trained for sequence in sequences]
    # Episodes in the order they come, from 0: their sequences follow each other.
    starts_Q = [0, *(int(a.episode != b.episode) for a, b in pairwise(sequences))]
    episodes_Q = np.cumsum(starts_Q[: len(sequences)])

    def put(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def per_trained(values_L: Callable[[TrainingSequence], NDArray[Any]], dtype: type) -> torch.Tensor:
        parts = [values_L(one)[one.loss_mask_L] for one in sequences]
        return put(np.concatenate([np.empty(0, dtype), *parts]).astype(dtype))

    def trained(name: str, dtype: type) -> torch.Tensor:
        return per_trained(attrgetter(name), dtype)

    # The hidden state of a token predicts the next one.
    hidden = [path_L[np.flatnonzero(one.loss_mask_L) - 1] for one, path_L in zip(sequences, rows.paths_Q, strict=True)]
    needed = [path_L[: len(one.needed_ids)] for one, path_L in zip(sequences, rows.paths_Q, strict=True)]
    counts = np.bincount(np.concatenate(needed), minlength=rows.input_ids_BL.size) if needed else np.ones(1)
    return MicroBatch(
        input_ids_BL=put(rows.input_ids_BL),
        hidden_N=put(np.concatenate([np.empty(0, np.int64), *hidden])),
        target_N=trained("token_ids_L", np.int64),
        episode_N=put(np.repeat(episodes_Q, counts_Q).astype(np.int64)),
        position_N=per_trained(lambda one: np.arange(one.num_tokens), np.int64),
        advantage_N=trained("advantages_L", np.float32),
        rollout_logprobs_N=trained("logprobs_L", np.float32),
        fresh_N=trained("versions_L", np.int64) == version,
        mixed_N=per_trained(mixed_tokens, np.bool_),
        weight_N=trained("weights_L", np.float32),
        num_episodes=int(episodes_Q[-1]) + 1 if len(sequences) else 0,
        update_tokens=update_tokens,
        trained_Q=counts_Q,
        position_ids_BL=None if rows.position_ids_BL is None else put(rows.position_ids_BL),
        layout=rows.layout,
        images=seen,
        token_counts_BL=put(counts.reshape(rows.input_ids_BL.shape).astype(np.float32)),
    )


def mixed_tokens(sequence: TrainingSequence) -> NDArray[np.bool_]:
    """Which of the L tokens are of a turn with more than one version."""
    turns_L, versions_L = sequence.turns_L, sequence.versions_L
    changes = (turns_L[1:] == turns_L[:-1]) & (versions_L[1:] != versions_L[:-1])
    return np.isin(turns_L, turns_L[1:][changes])


@dataclass(frozen=True)
class _Rows:
    input_ids_BL: NDArray[np.int64]
    paths_Q: list[NDArray[np.int64]]
    """Places of a sequence's tokens, rows one after the other: of all L in padded rows, of the needed ones in a shared
    row."""
    position_ids_BL: NDArray[np.int64] | None = None
    layout: AttentionLayout | None = None

    def see(self, images: Images | None) -> ImageInputs | None:
        """Put the image token where a place of an image is named; return what stands there."""
        place_M = np.flatnonzero(are_places(self.input_ids_BL))
        if images is None or not len(place_M):
            return None
        flat = self.input_ids_BL.reshape(-1)  # a view: the rows are contiguous
        seen = images.inputs(flat[place_M], place_M)
        flat[place_M] = images.image_token_id
        return seen


def _padded(tokens_Q: Sequence[NDArray[np.int64]], pad_token_id: int, images: Images | None) -> _Rows:
    length = max((len(token_ids_L) for token_ids_L in tokens_Q), default=1)
    input_ids_BL = np.full((max(len(tokens_Q), 1), length), pad_token_id, dtype=np.int64)
    paths_Q = []
    for row, token_ids_L in enumerate(tokens_Q):
        input_ids_BL[row, : len(token_ids_L)] = token_ids_L
        paths_Q.append(np.arange(row * length, row * length + len(token_ids_L)))
    return _Rows(input_ids_BL, paths_Q, _positions(tokens_Q, paths_Q, input_ids_BL.shape, images))


def _positions(
    tokens_Q: Sequence[NDArray[np.int64]],
    paths_Q: Sequence[NDArray[np.int64]],
    size: tuple[int, ...],
    images: Images | None,
) -> NDArray[np.int64] | None:
    """In time, height and width [3, B, L], for families that count them apart; None for others, and without images."""
    positions_Q = [images.positions(token_ids_L) for token_ids_L in tokens_Q] if images is not None else []
    in_space_Q = [positions_3L for positions_3L in positions_Q if positions_3L is not None]
    if not in_space_Q:
        return None
    found = np.zeros((3, *size), np.int64)
    flat = found.reshape(3, -1)
    for path_L, positions_3L in zip(paths_Q, in_space_Q, strict=True):
        flat[:, path_L] = positions_3L
    return found


def _shared(
    tokens_Q: Sequence[NDArray[np.int64]], pad_token_id: int, device: torch.device | str, images: Images | None
) -> _Rows:
    # A rank with nothing to do computes a token of padding, and its layers read a layout as everybody's.
    planted = tokens_Q or [np.array([pad_token_id])]
    forest = grow(planted)
    input_ids_BL, position_ids_BL = np.empty((2, 1, forest.num_unique), np.int64)
    for path_L, token_ids_L in zip(forest.paths_Q, planted, strict=True):
        input_ids_BL[0, path_L] = token_ids_L
        position_ids_BL[0, path_L] = np.arange(len(path_L))
    paths_Q, layout = forest.paths_Q if tokens_Q else [], attention_layout(forest, device)
    size = layout.equal_rows or input_ids_BL.shape
    in_space = _positions(tokens_Q, paths_Q, size, images)
    positions = in_space if in_space is not None else None if layout.equal_rows else position_ids_BL
    return _Rows(input_ids_BL.reshape(size), paths_Q, positions, layout)


def _check(sequence: TrainingSequence, version: int) -> None:
    if sequence.loss_mask_L[0]:
        raise ValueError("token 0 of a sequence cannot be trained on: no hidden state comes before it")
    unknown_L = np.isnan(sequence.logprobs_L) & (sequence.versions_L != version)
    if (unknown_L & sequence.loss_mask_L).any():
        raise ValueError("a stale token needs the rollout server's logprob as its old logprob")
