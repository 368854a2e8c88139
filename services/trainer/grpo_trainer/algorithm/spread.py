"""Whether the rewards of a group differ: where they do not, nothing is learnt from the group.

`frac_reward_zero_std` counts such groups, dynamic sampling replaces them, `data.difficulty` lets their prompts rest.
Estimators and `skipping.py` do not ask here, they go by the numbers: rewards that differ by rounding alone have no
spread, advantages next to 0, and are computed.
"""

from collections.abc import Iterable

from .scores import standard_deviation
from .sequences import Group

ZERO_STD = 1e-8
"""Largest standard deviation, in units of the reward, that counts as none: what rounding leaves of equal rewards."""


def has_spread(rewards: Iterable[float | None]) -> bool:
    """Whether the rewards of a group differ. None is no reward; fewer than two rewards have no spread."""
    return (standard_deviation(reward for reward in rewards if reward is not None) or 0.0) > ZERO_STD


def teaches(group: Group) -> bool:
    """Whether the totals of a scored group differ."""
    return has_spread(episode.total for episode in group.episodes)


def teaches_by_turn(group: Group) -> bool:
    """The same for an estimator of turns: whether totals differ, or the rewards of turns."""
    scored = [episode for episode in group.episodes if episode.total is not None]
    of_turns = {tuple(turn.reward for turn in episode.turns if turn.reward is not None) for episode in scored}
    return teaches(group) or len(of_turns) > 1
