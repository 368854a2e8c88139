"""Decisions: scored groups → what is trained on, with which advantage and weight, in which optimizer update."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from types import MappingProxyType

import numpy as np

from ..config.algorithm import AlgorithmConfig
from ..config.teacher import TeacherConfig
from ..errors import RunError
from .distillation import add_teacher, teacher_metrics
from .estimators import estimator_of
from .estimators.rewards import rewards_of
from .estimators.statistics import reward_metrics
from .normalisers import normaliser_of
from .normalisers.counts import Counts
from .sequences import Episode, Group, TrainingSequence, untrained_sequence
from .surrogates import reads_of, surrogate_of
from .turn_advantages import Advantage, of_episode, read_advantage


def training_sequences(
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    *,
    reward_weights: Mapping[str, float],
    own_rewards: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    max_completion_length: int,
    teachers: Mapping[str, TeacherConfig] = MappingProxyType({}),
) -> tuple[list[TrainingSequence], dict[str, float]]:
    """Advantages into the groups; then the sequences of all episodes that take part in the loss: scored, with tokens,
    not cut if cuts are masked. Also the metrics of their rewards.

    `own_rewards`: the weights of each dataset with rewards of its own, in place of `reward_weights`. `teachers`: those
    of the datasets that have one.
    """
    advantages = advantages_of(groups, algorithm, reward_weights, own_rewards, teachers)
    taken: list[tuple[Episode, Advantage]] = []
    taught_by, masked = list[TeacherConfig | None](), list[bool]()
    for group, of_group in zip(groups, advantages, strict=True):
        for episode, advantage in zip(group.episodes, of_group, strict=True):
            episode.advantage = None if advantage is None else of_episode(advantage, episode)
            left_out = episode.left_out_because(mask_truncated=algorithm.mask_truncated_completions)
            if advantage is not None and left_out in (None, "truncated"):
                taken.append((episode, advantage))
                taught_by.append(teachers.get(group.row.dataset))
                masked.append(left_out is not None)
    if reads_of(surrogate_of(algorithm)).behaviour:
        _refuse_unknown_behaviour(
            [episode for (episode, _), out in zip(taken, masked, strict=True) if not out], algorithm
        )
    metrics = reward_metrics([[episode.total for episode in group.episodes] for group in groups])
    if teachers:
        metrics |= teacher_metrics([group for group in groups if group.row.dataset in teachers])
    sequences = sequences_of(
        taken, algorithm, max_completion_length=max_completion_length, teachers=taught_by, masked=masked
    )
    return sequences, metrics


def advantages_of(
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    reward_weights: Mapping[str, float],
    own_rewards: Mapping[str, Mapping[str, float]],
    teachers: Mapping[str, TeacherConfig],
) -> list[list[Advantage | None]]:
    """The estimator's advantages, group by group. It gets the groups of each dataset by themselves.

    Rewards of two datasets may be of two scales: what an estimator takes over the batch is over those of one dataset.
    Where only a teacher counts, every episode gets 0, scored or not.
    """
    by_dataset: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        by_dataset.setdefault(group.row.dataset, []).append(number)
    estimator, advantages = estimator_of(algorithm), dict[int, list[Advantage | None]]()
    for dataset, numbers in by_dataset.items():
        of_dataset, weights = [groups[number] for number in numbers], own_rewards.get(dataset, reward_weights)
        teacher = teachers.get(dataset)
        if teacher is not None and (teacher.only or not weights):
            advantages |= {number: [0.0] * len(groups[number].episodes) for number in numbers}
            continue
        found = estimator(rewards_of(of_dataset, weights), algorithm)
        # Whatever an estimator of somebody's own returns: no score, no advantage.
        for number, group, of_group in zip(numbers, of_dataset, found, strict=True):
            advantages[number] = [
                None if episode.total is None or given is None else read_advantage(given, episode, algorithm)
                for episode, given in zip(group.episodes, of_group, strict=True)
            ]
    return [advantages[number] for number in range(len(groups))]


def _refuse_unknown_behaviour(episodes: Sequence[Episode], algorithm: AlgorithmConfig) -> None:
    without = [e.id for e in episodes if any(segment.logprobs is None for segment in e.segments if segment.turns)]
    if without:
        raise RunError(
            f"algorithm.loss {algorithm.surrogate_name} reads the servers' logprobs, and {len(without)} of "
            f"{len(episodes)} samples came without, the first of them {without[0]}",
            hint="use rollout servers that return logprobs, or a loss that reads the trainer's own",
        )


def sequences_of(
    taken: Sequence[tuple[Episode, Advantage]],
    algorithm: AlgorithmConfig,
    *,
    max_completion_length: int,
    teachers: Sequence[TeacherConfig | None] = (),
    masked: Sequence[bool] = (),
) -> list[TrainingSequence]:
    """The sequences of episodes that are trained on, each with its advantage, in their order. `teachers`: that of each
    episode, None without one. `masked`: which are cut off and only counted; absent: none.

    Updates are consecutive slices of the episodes, their sizes differ by one at most. One without an episode to train
    on is left out, because it would still move the weights (momentum, weight decay).
    """
    masked = masked or [False] * len(taken)
    updates, num_masked = updates_of(masked, algorithm.steps_per_generation)
    teachers = list(compress(teachers or [None] * len(taken), map(not_, masked)))
    taken = list(compress(taken, map(not_, masked)))
    facts = [facts_of(episode, number) for number, (episode, _) in enumerate(taken)]
    tokens = [sum(sequence.num_trained for sequence in sequences) for sequences in facts]
    weights = normaliser_of(algorithm)(Counts(tokens, updates, max_completion_length, num_masked))
    decided = [
        [_decided(sequence, advantage=advantage, weight=weight, update=update) for sequence in sequences]
        for sequences, (_, advantage), weight, update in zip(facts, taken, weights, updates, strict=True)
    ]
    for (episode, _), sequences, teacher in zip(taken, decided, teachers, strict=True):
        if teacher is not None:
            add_teacher(episode, sequences, teacher)
    return [sequence for sequences in decided for sequence in sequences]


def updates_of(masked: Sequence[bool], num_slices: int) -> tuple[list[int], Counter[int]]:
    """The update of each episode that is not masked, numbered without gaps; how many masked ones each update has."""
    slice_of = slices(len(masked), num_slices)
    trained = [of_slice for of_slice, is_masked in zip(slice_of, masked, strict=True) if not is_masked]
    update_of = {of_slice: update for update, of_slice in enumerate(dict.fromkeys(trained))}
    others = (of_slice for of_slice, is_masked in zip(slice_of, masked, strict=True) if is_masked)
    num_masked = Counter(update_of[of_slice] for of_slice in others if of_slice in update_of)
    return [update_of[of_slice] for of_slice in trained], num_masked


def slices(count: int, num_slices: int) -> list[int]:
    """For each of `count` things, which of at most `num_slices` consecutive slices of nearly equal size it is in."""
    num_slices = min(num_slices, count)
    bounds = [count * k // num_slices for k in range(num_slices + 1)] if num_slices else []
    return [k for k in range(num_slices) for _ in range(bounds[k], bounds[k + 1])]


def facts_of(episode: Episode, number: int) -> list[TrainingSequence]:
    """The segments of episode `number` in which something is trained, before any decision."""
    sequences, first_turn = [], 0
    for segment in episode.segments:
        sequence = untrained_sequence(segment, episode=number, first_turn=first_turn)
        first_turn += len(segment.turns)
        if sequence.num_trained:
            sequences.append(sequence)
    return sequences


def _decided(sequence: TrainingSequence, *, advantage: Advantage, weight: float, update: int) -> TrainingSequence:
    trained_L = sequence.loss_mask_L
    if isinstance(advantage, list):
        sequence.advantages_L[trained_L] = np.array(advantage, dtype=np.float32)[sequence.turns_L[trained_L]]
    else:
        sequence.advantages_L[trained_L] = advantage
    sequence.weights_L[sequence.loss_mask_L] = weight
    return replace(sequence, update=update)
