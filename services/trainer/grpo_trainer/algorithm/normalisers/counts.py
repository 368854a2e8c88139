"""What a normaliser counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Counts:
    """The episodes that are trained on, in order, over all micro-batches and ranks.

    One that was cut off, and is masked for it, has no weight; it counts in the N of its update all the same, as in TRL.
    """

    tokens: list[int]
    """T_e: trained tokens of each episode, at least 1."""
    update: list[int]
    """Number of each episode's optimizer update, from 0 without gaps."""
    limit: int
    """`rollout.max_completion_length`: the most tokens an episode may sample."""
    num_masked: Mapping[int, int] = field(default_factory=dict)
    """Update → how many of its episodes were cut off, and are masked for it."""

    @property
    def num_updates(self) -> int:
        return max(self.update, default=-1) + 1

    def episodes_of_update(self) -> list[int]:
        """For each episode, how many are in its update: N."""
        totals = [self.num_masked.get(update, 0) for update in range(self.num_updates)]
        for update in self.update:
            totals[update] += 1
        return [totals[update] for update in self.update]

    def tokens_of_update(self) -> list[int]:
        """For each episode, how many tokens are in its update: T."""
        totals = [0] * self.num_updates
        for update, tokens in zip(self.update, self.tokens, strict=True):
            totals[update] += tokens
        return [totals[update] for update in self.update]
