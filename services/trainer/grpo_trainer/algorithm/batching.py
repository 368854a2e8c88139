"""Batching: sequences → optimizer updates → one list of micro-batches for every rank.

Nothing that is learnt depends on how a batch is cut. A token's weight is fixed before, from counts over the whole
update on all ranks (`decisions.py`), and the loss of an update is the sum Σ_n w_n · l_n over all its tokens, wherever
they end up. The sequences of an episode stay together, because ratios of an episode are products over all of them.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .rows import RowLayout, fill, place
from .sequences import MicroBatch, TrainingSequence

# A micro-batch that is already this full takes no row shorter than this share of its longest: padding costs as much as
# tokens do.
MIN_FILL, MIN_ROW_SHARE = 0.25, 0.75

Plan = list[list[list[list[int]]]]
"""Sequence numbers by update, rank and micro-batch."""
PlanOfRank = list[list[list[int]]]
"""Numbers of a rank's own sequences by update and micro-batch."""


def plan_updates(
    sequences: Sequence[TrainingSequence],
    *,
    world_size: int,
    tokens_per_micro_batch: int,
    layout: RowLayout = "padded",
    num_updates: int | None = None,
) -> Plan:
    """Who computes what: sequence numbers by update, rank and micro-batch.

    Inside an update, episodes go longest first to the rank with the fewest tokens and are put into micro-batches in
    that order (`pack`); an episode larger than the budget has a micro-batch of its own. Every rank has the same number
    of micro-batches; a rank that needs fewer first halves its largest ones and then gets empty ones. `num_updates`
    defaults to those that `sequences` are in; an update of which none is left has one empty micro-batch on every rank,
    because its optimizer steps all the same.
    """
    units = [list(numbers) for _, numbers in groupby(range(len(sequences)), key=lambda i: sequences[i].episode)]
    if num_updates is None:
        num_updates = count_updates(sequences)
    plan: Plan = []
    for update in range(num_updates):
        in_update = [unit for unit in units if sequences[unit[0]].update == update]
        members: list[list[list[int]]] = [[] for _ in range(world_size)]
        loads = [0] * world_size
        for unit in sorted(in_update, key=lambda unit: (-_longest(sequences, unit), unit[0])):
            lightest = loads.index(min(loads))
            members[lightest].append(unit)
            loads[lightest] += sum(sequences[i].num_tokens for i in unit)
        packed = [pack(sequences, units_of_rank, tokens_per_micro_batch, layout) for units_of_rank in members]
        count = max(1, *(len(micro_batches) for micro_batches in packed))
        spread = [_spread(micro_batches, count) for micro_batches in packed]
        plan.append([[[i for unit in units for i in unit] for units in micro_batches] for micro_batches in spread])
    return plan


def count_updates(sequences: Sequence[TrainingSequence]) -> int:
    return max((sequence.update for sequence in sequences), default=-1) + 1


def pack(
    sequences: Sequence[TrainingSequence], longest_first: list[list[int]], budget: int, layout: RowLayout
) -> list[list[list[int]]]:
    """Put `longest_first`, the sequence numbers of each episode, into micro-batches of rows × longest row ≤ `budget`
    tokens.

    Rows of one sequence each are taken in order while the padding stays small (`MIN_ROW_SHARE`).
    """
    if layout != "padded":
        lengths = [[sequences[i].num_tokens for i in unit] for unit in longest_first]
        return [[longest_first[number] for number in numbers] for numbers in fill(lengths, budget, layout)]
    packed: list[list[list[int]]] = []
    for unit in longest_first:
        rows = sum(map(len, packed[-1])) if packed else 0
        longest = _longest(sequences, packed[-1][0]) if packed else 0
        full = not packed or (rows + len(unit)) * longest > budget
        wasteful = _longest(sequences, unit) < MIN_ROW_SHARE * longest
        if full or (wasteful and rows * longest >= MIN_FILL * budget):
            packed.append([unit])
        else:
            packed[-1].append(unit)
    return packed


def _longest(sequences: Sequence[TrainingSequence], unit: list[int]) -> int:
    return max(sequences[i].num_tokens for i in unit)


def _spread(micro_batches: list[list[list[int]]], count: int) -> list[list[list[int]]]:
    """The same episodes in `count` micro-batches."""
    spread = list(micro_batches)
    while len(spread) < count:
        largest = max(range(len(spread)), key=lambda k: len(spread[k]), default=None)
        if largest is None or len(spread[largest]) < 2:
            spread.append([])
            continue
        units = spread[largest]
        half = len(units) // 2
        spread[largest : largest + 1] = [units[:half], units[half:]]
    return spread


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
    layout: RowLayout = "padded",
) -> list[list[MicroBatch]]:
    """The micro-batches of one rank, by optimizer update. `version` is the policy that is trained on them."""
    return [
        [
            collate(
                [own[i] for i in numbers],
                version=version,
                update_tokens=num_tokens,
                pad_token_id=pad_token_id,
                device=device,
                layout=layout,
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
    layout: RowLayout = "padded",
) -> MicroBatch:
    """Put `sequences` into tensors; none make the empty micro-batch (see `MicroBatch`).

    Raises ValueError for a trained token 0, and for a trained stale token without a logprob: nothing else says what it
    was sampled from.
    """
    for sequence in sequences:
        _check(sequence, version)
    places_Q = place([sequence.num_tokens for sequence in sequences], layout)
    input_ids_BL, position_ids_BL = _lay_out(sequences, places_Q, pad_token_id)
    counts_Q = [sequence.num_trained for sequence in sequences]
    # Episodes in the order they come, from 0: their sequences follow each other.
    starts_Q = [0, *(int(a.episode != b.episode) for a, b in pairwise(sequences))]
    episodes_Q = np.cumsum(starts_Q[: len(sequences)])

    def per_trained(values_L: Callable[[TrainingSequence], NDArray[Any]], dtype: type) -> torch.Tensor:
        parts = [values_L(one)[one.loss_mask_L] for one in sequences]
        return torch.from_numpy(np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)).to(device)

    def trained(name: str, dtype: type) -> torch.Tensor:
        return per_trained(attrgetter(name), dtype)

    def columns() -> torch.Tensor:
        placed = zip(sequences, places_Q, strict=True)
        parts = [start + np.flatnonzero(sequence.loss_mask_L) for sequence, (_, start) in placed]
        return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts])).to(device)

    rows_Q = np.array([row for row, _ in places_Q], np.int64)
    shares_rows = len(set(rows_Q)) < len(rows_Q)
    return MicroBatch(
        input_ids_BL=torch.from_numpy(input_ids_BL).to(device),
        row_N=torch.from_numpy(np.repeat(rows_Q, counts_Q)).to(device),
        column_N=columns(),
        episode_N=torch.from_numpy(np.repeat(episodes_Q, counts_Q).astype(np.int64)).to(device),
        advantage_N=trained("advantages_L", np.float32),
        rollout_logprobs_N=trained("logprobs_L", np.float32),
        fresh_N=trained("versions_L", np.int64) == version,
        mixed_N=per_trained(mixed_tokens, np.bool_),
        weight_N=trained("weights_L", np.float32),
        num_episodes=int(episodes_Q[-1]) + 1 if len(sequences) else 0,
        update_tokens=update_tokens,
        trained_Q=counts_Q,
        position_ids_BL=torch.from_numpy(position_ids_BL).to(device) if shares_rows else None,
    )


def mixed_tokens(sequence: TrainingSequence) -> NDArray[np.bool_]:
    """Which of the L tokens are of a turn with more than one version."""
    turns_L, versions_L = sequence.turns_L, sequence.versions_L
    changes = (turns_L[1:] == turns_L[:-1]) & (versions_L[1:] != versions_L[:-1])
    return np.isin(turns_L, turns_L[1:][changes])


def _lay_out(
    sequences: Sequence[TrainingSequence], places_Q: Sequence[tuple[int, int]], pad_token_id: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the token and the position of every column [B, L], each sequence from its row and first column."""
    ends = [start + sequence.num_tokens for sequence, (_, start) in zip(sequences, places_Q, strict=True)]
    shape = max((row + 1 for row, _ in places_Q), default=1), max(ends, default=1)
    input_ids_BL = np.full(shape, pad_token_id, dtype=np.int64)
    position_ids_BL = np.zeros(shape, dtype=np.int64)
    for sequence, (row, start), end in zip(sequences, places_Q, ends, strict=True):
        input_ids_BL[row, start:end] = sequence.token_ids_L
        # Padding goes on from the sequence before it: positions of 0 would make sequences of it.
        position_ids_BL[row, start:] = np.arange(shape[1] - start)
    return input_ids_BL, position_ids_BL


def _check(sequence: TrainingSequence, version: int) -> None:
    if sequence.loss_mask_L[0]:
        raise ValueError("token 0 of a sequence cannot be trained on: no hidden state comes before it")
    unknown_L = np.isnan(sequence.logprobs_L) & (sequence.versions_L != version)
    if (unknown_L & sequence.loss_mask_L).any():
        raise ValueError("a stale token needs the rollout server's logprob as its old logprob")
