"""Difficulty memory: how often the policy solves each prompt, and which prompts an epoch passes over for it.

    p = memory · p + (1 − memory) · share of correct completions          weight = max(min_weight, 4 p (1 − p))

p (1 − p) is the variance of a reward of 0 or 1, the most that a group can teach ("learnability", arXiv 2502.12272). A
prompt without a p has weight 1. When the completions of a prompt are all correct or all wrong, and their rewards
equal, it rests for `rest_epochs` epochs, unless the run learns from such completions, too.

Everything is a function of the seed, the position and what was learnt until then: nothing is drawn from a generator.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..config.data import DifficultyConfig

Known = list[tuple[int, float, int]]
"""Row, its solve rate, and the first epoch in which it no longer rests; in the order of the rows, for a checkpoint."""


@dataclass
class DifficultyMemory:
    """What is known of the rows of a run, by their numbers among the rows of all its datasets."""

    config: DifficultyConfig
    seed: int
    solve_rate: dict[int, float] = field(default_factory=dict)
    rests_until: dict[int, int] = field(default_factory=dict)
    """Row → first epoch in which it may be sampled again; rows that do not rest are absent or in the past."""
    rests: bool = True
    """Whether a prompt rests at all: not where an estimator or a teacher learns from equal rewards."""

    @classmethod
    def of(
        cls, config: DifficultyConfig | None, *, seed: int, known: Iterable[Sequence[Any]] = (), rests: bool = True
    ) -> Self | None:
        """The memory of a run, with what a checkpoint knows; None for a run without."""
        if config is None:
            return None
        memory = cls(config, seed, rests=rests)
        memory.restore(known)
        return memory

    def restore(self, known: Iterable[Sequence[Any]]) -> None:
        """Know what a checkpoint knows, and nothing else."""
        known = list(known)
        self.solve_rate = {row: rate for row, rate, _ in known}
        self.rests_until = {row: until for row, _, until in known if until}

    def learn(self, row: int, *, epoch: int, solved: float, teaches: bool) -> None:
        """Take in a group of `row`: the share of correct completions, and whether its rewards differ."""
        before = self.solve_rate.get(row, solved)
        self.solve_rate[row] = self.config.memory * before + (1 - self.config.memory) * solved
        if self.rests and solved in (0.0, 1.0) and not teaches:
            self.rests_until[row] = epoch + 1 + self.config.rest_epochs

    def weight(self, row: int, *, epoch: int) -> float:
        """Probability that `row` is sampled in `epoch`; 0 while it rests."""
        if epoch < self.rests_until.get(row, 0):
            return 0.0
        p = self.solve_rate.get(row)
        return 1.0 if p is None else max(self.config.min_weight, 4 * p * (1 - p))

    def passes_over(self, row: int, *, position: int, epoch: int) -> bool:
        """Decide about `row`, prompt number `position` of the run."""
        weight = self.weight(row, epoch=epoch)
        return weight < 1.0 and _uniform(self.seed, position) >= weight

    def wake_all(self) -> None:
        """End every rest: too few prompts are left."""
        self.rests_until.clear()

    def metrics(self, *, epoch_of: Callable[[int], int]) -> dict[str, float]:
        """Return the number of known and of resting prompts, and the mean solve rate of those that are known.

        `epoch_of` gives the epoch that the dataset of a row is in.
        """
        resting = sum(epoch_of(row) < until for row, until in self.rests_until.items())
        found: dict[str, float] = {"difficulty/known": len(self.solve_rate), "difficulty/resting": resting}
        if self.solve_rate:
            found["difficulty/solve_rate"] = sum(self.solve_rate.values()) / len(self.solve_rate)
        return found

    def state(self) -> Known:
        """Return what a checkpoint stores."""
        return [(row, rate, self.rests_until.get(row, 0)) for row, rate in sorted(self.solve_rate.items())]


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1), another for every position."""
    digest = hashlib.blake2b(f"difficulty {seed} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
