"""Decisions: scored groups → what is trained on, with which advantage and weight, in which optimizer update."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..config.algorithm import AlgorithmConfig
from ..errors import RunError
from .estimators import estimator_of
from .estimators.rewards import rewards_of
from .estimators.statistics import reward_metrics
from .normalisers import normaliser_of
from .normalisers.counts import Counts
from .sequences import Episode, Group, TrainingSequence, untrained_sequence
from .surrogates import reads_of, surrogate_of


def training_sequences(
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    *,
    reward_weights: Mapping[str, float],
    own_rewards: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    max_completion_length: int,
) -> tuple[list[TrainingSequence], dict[str, float]]:
    """Advantages into the groups; then the sequences of all episodes that take part in the loss: scored, with tokens,
    not cut if cuts are masked. Also the metrics of their rewards. What takes no part counts in no normaliser.

    `own_rewards`: the weights of each dataset with rewards of its own, in place of `reward_weights`.
    """
    advantages = advantages_of(groups, algorithm, reward_weights, own_rewards)
    taken: list[tuple[Episode, float]] = []
    for group, of_group in zip(groups, advantages, strict=True):
        for episode, given in zip(group.episodes, of_group, strict=True):
            # Whatever an estimator of somebody's own returns: no score, no advantage.
            advantage = None if episode.total is None or given is None else float(given)
            episode.advantage = advantage
            left_out = episode.left_out_because(mask_truncated=algorithm.mask_truncated_completions)
            if advantage is not None and left_out is None:
                taken.append((episode, advantage))
    if reads_of(surrogate_of(algorithm)).behaviour:
        _refuse_unknown_behaviour([episode for episode, _ in taken], algorithm)
    metrics = reward_metrics([[episode.total for episode in group.episodes] for group in groups])
    return sequences_of(taken, algorithm, max_completion_length=max_completion_length), metrics


def advantages_of(
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    reward_weights: Mapping[str, float],
    own_rewards: Mapping[str, Mapping[str, float]],
) -> list[list[float | None]]:
    """The estimator's advantages, group by group. It gets the groups of each dataset by themselves.

    Rewards of two datasets may be of two scales: what an estimator takes over the batch is over those of one dataset.
    """
    by_dataset: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        by_dataset.setdefault(group.row.dataset, []).append(number)
    estimator, advantages = estimator_of(algorithm), dict[int, list[float | None]]()
    for dataset, numbers in by_dataset.items():
        rewards = rewards_of([groups[number] for number in numbers], own_rewards.get(dataset, reward_weights))
        found = estimator(rewards, algorithm)
        advantages |= zip(numbers, found, strict=True)
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
    taken: Sequence[tuple[Episode, float]], algorithm: AlgorithmConfig, *, max_completion_length: int
) -> list[TrainingSequence]:
    """The sequences of episodes that are trained on, each with its advantage, in their order.

    Updates are consecutive slices of the episodes, their sizes differ by one at most; with fewer episodes than
    `steps_per_generation` there are only as many updates as episodes, because an update without any would still move
    the weights (momentum, weight decay).
    """
    facts = [facts_of(episode, number) for number, (episode, _) in enumerate(taken)]
    updates = slices(len(taken), algorithm.steps_per_generation)
    tokens = [sum(sequence.num_trained for sequence in sequences) for sequences in facts]
    weights = normaliser_of(algorithm)(Counts(tokens, updates, max_completion_length))
    return [
        _decided(sequence, advantage=advantage, weight=weight, update=update)
        for sequences, (_, advantage), weight, update in zip(facts, taken, weights, updates, strict=True)
        for sequence in sequences
    ]


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


def _decided(sequence: TrainingSequence, *, advantage: float, weight: float, update: int) -> TrainingSequence:
    sequence.advantages_L[sequence.loss_mask_L] = advantage
    sequence.weights_L[sequence.loss_mask_L] = weight
    return replace(sequence, update=update)
