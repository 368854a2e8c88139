"""Batching: samples → optimizer updates → one list of micro-batches for every rank.

Nothing that is learnt depends on how a batch is cut. A token's weight is fixed here, from counts over the whole update
on all ranks, and the loss of an update is the sum Σ_n w_n · l_n over all its tokens, wherever they end up.

Samples that take no part are left out before: those without a score, without a completion token, and truncated ones
under `mask_truncated_completions`. They count in no normaliser.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch

from ..config.run_config import AlgorithmConfig
from .sequences import MicroBatch, TrainingSample

# A micro-batch that is already this full takes no row shorter than this share of its longest: padding costs as much as
# tokens do.
MIN_FILL, MIN_ROW_SHARE = 0.25, 0.75

Plan = list[list[list[list[int]]]]
"""Sample numbers by update, rank and micro-batch."""


def build_updates(
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    *,
    max_completion_length: int,
    tokens_per_micro_batch: int,
    rank: int,
    world_size: int,
    pad_token_id: int,
    device: torch.device | str,
) -> list[list[MicroBatch]]:
    """The micro-batches of this rank for every optimizer update of one pass over `samples`, in order.

    All ranks call it with the same samples and get lists of the same lengths.
    """
    plan = plan_updates(
        samples,
        steps_per_generation=algorithm.steps_per_generation,
        world_size=world_size,
        tokens_per_micro_batch=tokens_per_micro_batch,
    )
    weights = token_weights(samples, plan, loss_type=algorithm.loss_type, max_completion_length=max_completion_length)
    updates = []
    for update in plan:
        update_tokens = sum(len(samples[i].token_ids) for i in _members(update))
        updates.append(
            [
                collate(
                    samples,
                    indices,
                    weights,
                    update_tokens=update_tokens,
                    pad_token_id=pad_token_id,
                    device=device,
                )
                for indices in update[rank]
            ]
        )
    return updates


def plan_updates(
    samples: Sequence[TrainingSample], *, steps_per_generation: int, world_size: int, tokens_per_micro_batch: int
) -> Plan:
    """Who computes what: sample numbers by update, rank and micro-batch.

    Updates are consecutive slices of `samples`, their sizes differ by one at most; with fewer samples than
    `steps_per_generation` there are only as many updates as samples, because an update without samples would still
    move the weights (momentum, weight decay). Inside an update, samples go longest first to the rank with the fewest
    tokens and are packed in that order while rows × longest row ≤ `tokens_per_micro_batch` and the padding stays small
    (`MIN_ROW_SHARE`); a sample longer than the budget has a micro-batch of its own. Every rank has the same number of
    micro-batches; a rank that needs fewer first halves its largest ones and then gets empty ones.
    """
    num_updates = min(steps_per_generation, len(samples))
    bounds = [len(samples) * k // num_updates for k in range(num_updates + 1)] if num_updates else []
    plan: Plan = []
    for start, end in pairwise(bounds):
        longest_first = sorted(range(start, end), key=lambda i: (-samples[i].num_tokens, i))
        members: list[list[int]] = [[] for _ in range(world_size)]
        loads = [0] * world_size
        for i in longest_first:
            lightest = loads.index(min(loads))
            members[lightest].append(i)
            loads[lightest] += samples[i].num_tokens
        packed = [pack(samples, indices, tokens_per_micro_batch) for indices in members]
        count = max(len(micro_batches) for micro_batches in packed)
        plan.append([_spread(micro_batches, count) for micro_batches in packed])
    return plan


def token_weights(
    samples: Sequence[TrainingSample],
    plan: Plan,
    *,
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"],
    max_completion_length: int,
) -> list[float]:
    """The weight of every token of sample i, for all i. T_i is the length of its completion in tokens.

    With N sequences and T = Σ T_i tokens in the sample's optimizer update, over all micro-batches and ranks:

        grpo      1 / (T_i · N)                        each sequence counts the same (arXiv 2402.03300)
        bnpo      1 / T                                each token of the update counts the same
        dr_grpo   1 / (N · max_completion_length)      no length bias (arXiv 2503.20783); a new limit is a new scale
        dapo      updates / T of the whole generation batch: each token of the batch counts the same
                  (arXiv 2503.14476)

    TRL has the same formulas; it takes N and T of grpo, bnpo and dr_grpo per micro-batch and rank and averages, which
    is the same only when all micro-batches are equally large.
    """
    batch_tokens = sum(len(sample.token_ids) for sample in samples)
    weights = [0.0] * len(samples)
    for update in plan:
        members = _members(update)
        update_tokens = sum(len(samples[i].token_ids) for i in members)
        for i in members:
            if loss_type == "grpo":
                weights[i] = 1.0 / (len(samples[i].token_ids) * len(members))
            elif loss_type == "bnpo":
                weights[i] = 1.0 / update_tokens
            elif loss_type == "dr_grpo":
                weights[i] = 1.0 / (len(members) * max_completion_length)
            else:
                weights[i] = len(plan) / batch_tokens
    return weights


def collate(
    samples: Sequence[TrainingSample],
    indices: Sequence[int],
    weights: Sequence[float],
    *,
    update_tokens: int,
    pad_token_id: int,
    device: torch.device | str,
) -> MicroBatch:
    """Put the samples `indices` into tensors; no indices make the empty micro-batch (see `MicroBatch`).

    Raises ValueError for a sample without a prompt or completion token, with another number of logprobs than tokens,
    or stale without logprobs: nothing else tells what it was sampled from.
    """
    chosen = [samples[i] for i in indices]
    for sample in chosen:
        _check(sample)
    length = max((sample.num_tokens for sample in chosen), default=1)
    rows = [sample.prompt_token_ids + sample.token_ids for sample in chosen] or [[]]
    counts = torch.tensor([len(sample.token_ids) for sample in chosen], dtype=torch.long)
    spans = [torch.arange(len(sample.prompt_token_ids), sample.num_tokens) for sample in chosen]
    logprobs = [sample.rollout_logprobs or [float("nan")] * len(sample.token_ids) for sample in chosen]
    empty = torch.empty(0, dtype=torch.long)

    def per_token(values: list[float] | list[bool], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).repeat_interleave(counts).to(device)

    return MicroBatch(
        input_ids_BL=torch.tensor([row + [pad_token_id] * (length - len(row)) for row in rows]).to(device),
        row_N=torch.arange(len(chosen)).repeat_interleave(counts).to(device),
        column_N=torch.cat(spans or [empty]).to(device),
        advantage_N=per_token([sample.advantage for sample in chosen], torch.float32),
        rollout_logprobs_N=torch.tensor([x for row in logprobs for x in row], dtype=torch.float32).to(device),
        fresh_N=per_token([sample.fresh for sample in chosen], torch.bool),
        weight_N=per_token([weights[i] for i in indices], torch.float32),
        update_tokens=update_tokens,
    )


def _members(update: list[list[list[int]]]) -> list[int]:
    return [i for micro_batches in update for indices in micro_batches for i in indices]


def pack(samples: Sequence[TrainingSample], longest_first: list[int], budget: int) -> list[list[int]]:
    """`longest_first` as micro-batches of rows × longest row ≤ `budget` tokens, as `plan_updates` says."""
    packed: list[list[int]] = []
    for i in longest_first:
        longest = samples[packed[-1][0]].num_tokens if packed else 0
        full = not packed or (len(packed[-1]) + 1) * longest > budget
        wasteful = samples[i].num_tokens < MIN_ROW_SHARE * longest
        if full or (wasteful and len(packed[-1]) * longest >= MIN_FILL * budget):
            packed.append([i])
        else:
            packed[-1].append(i)
    return packed


def _spread(micro_batches: list[list[int]], count: int) -> list[list[int]]:
    """The same samples in `count` micro-batches."""
    spread = list(micro_batches)
    while len(spread) < count:
        largest = max(range(len(spread)), key=lambda k: len(spread[k]), default=None)
        if largest is None or len(spread[largest]) < 2:
            spread.append([])
            continue
        indices = spread[largest]
        half = len(indices) // 2
        spread[largest : largest + 1] = [indices[:half], indices[half:]]
    return spread


def _check(sample: TrainingSample) -> None:
    if not sample.prompt_token_ids or not sample.token_ids:
        raise ValueError("a training sample needs at least one prompt token and one completion token")
    if sample.rollout_logprobs and len(sample.rollout_logprobs) != len(sample.token_ids):
        raise ValueError(f"{len(sample.rollout_logprobs)} rollout logprobs for {len(sample.token_ids)} tokens")
    if not sample.fresh and not sample.rollout_logprobs:
        raise ValueError("a stale sample needs the rollout server's logprobs as its old logprobs")
