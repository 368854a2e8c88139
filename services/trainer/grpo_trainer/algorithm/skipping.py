"""Skipping: the sequences whose gradient is nothing are not computed.

An episode of a group without spread has advantage 0 in all its tokens. Where the surrogate of such a token is 0 with
gradient 0, and no KL term, entropy bonus, entropy mask or load-balancing loss reads the token, its forward and backward
pass change nothing. Its weight is fixed before, from counts over all episodes (`decisions.py`), so that the loss of the
others does not change either: loss and gradient of an update are those of all its episodes.

Metrics of the forward pass are of computed tokens then. Every `SURVEY_EVERY` steps, and when nothing is computed, a
pass without gradient covers the whole batch; its metrics carry the prefix `SURVEYED`.
"""

from collections.abc import Mapping, Sequence

from ..config.algorithm import AlgorithmConfig
from .sequences import TrainingSequence
from .surrogates import reads_of, surrogate_of

SURVEY_EVERY = 10
SURVEYED = "all_samples/"


def sequences_to_compute(sequences: Sequence[TrainingSequence], algorithm: AlgorithmConfig) -> list[TrainingSequence]:
    """Drop the episodes that have advantage 0 in every trained token, if the loss permits it; keep the order.

    Whole episodes only: a ratio of an episode reads the tokens of all its sequences.
    """
    if not may_skip(algorithm):
        return list(sequences)
    taught = {sequence.episode for sequence in sequences if sequence.advantages_L[sequence.loss_mask_L].any()}
    return [sequence for sequence in sequences if sequence.episode in taught]


def may_skip(algorithm: AlgorithmConfig) -> bool:
    """Whether a token of advantage 0 has no gradient by the settings, and skipping is on."""
    reads_all = algorithm.beta_of_loss > 0.0 or algorithm.has_entropy_bonus or algorithm.masks_low_entropy
    reads_all = reads_all or algorithm.load_balancing_coef > 0.0
    declared = reads_of(surrogate_of(algorithm)).zero_without_advantage
    return algorithm.skip_zero_advantage and declared and not reads_all


def surveyed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Label the metrics of a pass over all samples. Its loss is dropped: updates of a batch are not one loss."""
    return {SURVEYED + name: value for name, value in metrics.items() if name != "loss"}
