"""Groups that were sampled and enter no batch: too stale, or episodes with too few totals. None is lost silently.

A group with too few totals is dropped and not repeated, and the next prompt takes its place. Where that is the rule, no
batch would ever be full: the run ends.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..algorithm.sequences import Group
from ..errors import RunError
from .reward import check_enough_scored

log = logging.getLogger(__name__)

MAX_BATCHES = 10
"""A run ends when the groups with too few totals would fill so many batches, and none is full."""


@dataclass
class Dropped:
    """What was dropped since the last batch. A group with fewer totals than `min_group_size` is too small."""

    min_group_size: int
    too_small: list[Group] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by the mask of their turn, or the reason why their group was dropped."""

    def large_enough(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups that have enough totals; drop the others."""
        kept = []
        for group in groups:
            scored = sum(episode.total is not None for episode in group.episodes)
            if scored >= self.min_group_size:
                kept.append(group)
                continue
            log.warning(
                "dropped group %d: %d of its %d episodes have a total, and episodes.min_group_size is %d",
                *(group.position, scored, len(group.episodes), self.min_group_size),
            )
            group.trace.end("too few totals")
            for segment in (segment for episode in group.episodes for segment in episode.segments):
                segment.turns[:] = [replace(turn, masked=turn.masked or "dropped") for turn in segment.turns]
            self.too_small.append(group)
            self.count(group, "dropped")
        return kept

    def count(self, group: Group, reason: str) -> None:
        for episode in group.episodes:
            self.tokens.update(episode.tokens_by_reason(otherwise=reason))

    def check(self, finished: Sequence[Group], groups_per_batch: int, min_scored_share: float) -> None:
        """Raise RunError when groups are dropped one after another, while a batch waits for them."""
        if len(self.too_small) >= groups_per_batch:
            check_enough_scored([*self.too_small, *finished], min_scored_share)
        if len(self.too_small) >= MAX_BATCHES * groups_per_batch:
            raise RunError(
                f"{len(self.too_small)} groups were dropped for a batch of {groups_per_batch}, because fewer than "
                f"{self.min_group_size} of their episodes have a total",
                hint="see the warnings above for why they have none, or lower episodes.min_group_size",
            )

    def batch_taken(self) -> tuple[list[Group], dict[str, int]]:
        """Return `too_small` and `tokens`; both begin anew for the next batch."""
        found = self.too_small, dict(self.tokens)
        self.too_small, self.tokens = [], Counter()
        return found
