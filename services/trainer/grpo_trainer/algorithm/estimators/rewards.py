"""What an estimator takes: the rewards of a generation batch, group by group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..sequences import Group

Scores = Sequence[Sequence[float | None]]
"""One number for each episode of each group; None where there is no score, which is never 0."""


@dataclass(frozen=True)
class Rewards:
    """Rewards of episodes. All `Scores` have the same shape: G episodes for each group, None without a score.

    An episode without a total takes no part in the training, whatever single rewards it has.
    """

    totals: Scores
    """The weighted sum of an episode's rewards, less its KL with `kl_in_reward`; what most estimators need."""
    by_name: Mapping[str, Scores] = field(default_factory=dict)
    """The rewards one by one, before their weights."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """`reward.reward_weights` by the name of the reward."""
    turns: Sequence[Sequence[Sequence[float | None]]] = ()
    """Reward of each turn of each episode of each group, in the order of the episode's segments; None where a turn got
    none. A completion is one turn."""


def rewards_of(groups: Sequence[Group], weights: Mapping[str, float]) -> Rewards:
    """The rewards of scored groups."""
    return Rewards(
        totals=[[None if e.total is None else e.total - e.kl_penalty for e in group.episodes] for group in groups],
        by_name={
            name: [
                [scored.score if (scored := episode.rewards.get(name)) else None for episode in group.episodes]
                for group in groups
            ]
            for name in weights
        },
        weights=weights,
        turns=[[[turn.reward for turn in episode.turns] for episode in group.episodes] for group in groups],
    )
