"""CHORD: which demonstrations an optimizer update imitates beside its samples, and with what share of the loss.

    L = (1 − μ) · L_samples + μ · L_demonstrations          (arXiv 2508.11408)

Both are functions of the seed and the update's number alone, which a checkpoint has: a resumed run goes on with the
next ones.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Self

from ..config.chord import ChordConfig
from ..data.demonstrations import Example
from ..data.order import Epochs, dataset_seed
from .sequences import Segment, TrainingSequence, Turn, untrained_sequence


class Demonstrations:
    """All demonstrations of a run, epoch after epoch in another order."""

    def __init__(self, examples: Sequence[Example], config: ChordConfig, *, seed: int):
        self.config = config
        self._examples = examples
        self._epochs = Epochs(0, len(examples), dataset_seed(seed, "chord"), shuffle=True)

    @classmethod
    def of(cls, config: ChordConfig | None, examples: Sequence[Example], *, seed: int) -> Self | None:
        return None if config is None else cls(examples, config, seed=seed)

    def of_update(self, number: int, *, version: int) -> list[TrainingSequence]:
        """Return those that optimizer update `number` of the run, from 0, imitates: `sft_batch_size` sequences whose
        weights are 1 / (their imitated tokens). `version` is the policy that is trained."""
        size = self.config.sft_batch_size
        taken = [self._examples[self._epochs.draw(place)[0]] for place in range(number * size, (number + 1) * size)]
        num_tokens = sum(sum(example["completion_mask"]) for example in taken)
        return [_imitated(example, k, 1.0 / num_tokens, version) for k, example in enumerate(taken)]


def mu_of(config: ChordConfig, number: int) -> float:
    """μ of optimizer update `number` of the run, from 0."""
    peak, valley, warmup, decay = config.mu_peak, config.valley, config.mu_warmup_steps, config.mu_decay_steps
    if number < warmup:
        return peak * number / warmup
    if number < warmup + decay:
        return valley + (peak - valley) * (1.0 + math.cos(math.pi * (number - warmup) / decay)) / 2.0
    return valley


def chord_doubts(config: ChordConfig | None, *, num_examples: int, total_updates: int) -> Iterator[str]:
    """What is allowed, and seldom meant."""
    if config is None:
        return
    changes, last = config.mu_warmup_steps + config.mu_decay_steps, total_updates - 1
    if changes > total_updates:
        yield (
            f"chord: μ changes for {changes} updates, and the run makes {total_updates}: it ends at "
            f"{mu_of(config, last):.2g}; set chord.mu_warmup_steps and chord.mu_decay_steps to fewer"
        )
    if config.sft_batch_size > num_examples:
        yield (
            f"chord.sft_batch_size {config.sft_batch_size} is more than the {num_examples} demonstrations of "
            f"{config.sft_dataset}: an update imitates some of them more than once"
        )


def _imitated(example: Example, episode: int, weight: float, version: int) -> TrainingSequence:
    ids, mask = example["input_ids"], example["completion_mask"]
    start = mask.index(1)
    turn = Turn(start, len(ids), [(version, len(ids) - start)], "stop")
    sequence = untrained_sequence(Segment(ids, [turn]), episode=episode)
    sequence.weights_L[sequence.loss_mask_L] = weight
    return sequence
