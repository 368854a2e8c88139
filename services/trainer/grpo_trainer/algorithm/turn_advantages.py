"""Advantages by turn: an estimator may return, in place of an episode's number, one for each of its turns.

All tokens of a turn get the turn's; what the log shows of the episode is their mean over its trained tokens.
"""

import math
from collections.abc import Sequence

from ..config.algorithm import AlgorithmConfig
from ..errors import UpdateError
from .sequences import Episode
from .surrogates import reads_of, surrogate_of

Advantage = float | list[float]


def read_advantage(given: float | Sequence[float], episode: Episode, algorithm: AlgorithmConfig) -> Advantage:
    """What an estimator has returned for an episode.

    Raises UpdateError for a list that has not one finite number for each turn, and where one advantage for the whole
    episode is read.
    """
    if not isinstance(given, Sequence):
        return float(given)
    advantages, num_turns = [float(one) for one in given], sum(1 for _ in episode.turns)
    where = f"algorithm.advantage_estimator {algorithm.advantage_estimator}"
    if len(advantages) != num_turns or not all(map(math.isfinite, advantages)):
        raise UpdateError(
            f"{where} returned {len(advantages)} advantages for the {num_turns} turns of episode {episode.id}: "
            f"{advantages[:8]}",
            hint="return one finite number for each turn, or one for the whole episode",
        )
    if reads_of(surrogate_of(algorithm)).episode_advantage or algorithm.off_policy_mask_threshold is not None:
        reader = "off_policy_mask_threshold" if algorithm.off_policy_mask_threshold is not None else "loss"
        raise UpdateError(
            f"{where} gives each turn an advantage, and algorithm.{reader} reads one for the whole episode",
            hint="choose another loss, or an estimator of whole episodes",
        )
    return advantages


def of_episode(advantage: Advantage, episode: Episode) -> float:
    """The mean over trained tokens; 0 without any."""
    if isinstance(advantage, float):
        return advantage
    counts = [turn.num_tokens if turn.masked is None else 0 for turn in episode.turns]
    weighted = math.fsum(one * count for one, count in zip(advantage, counts, strict=True))
    return weighted / total if (total := sum(counts)) else 0.0
