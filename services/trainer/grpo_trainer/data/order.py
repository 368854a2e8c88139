"""Prompt: which row is prompt number `position` of the run, and with which seed it is sampled.

Both are functions of (seed, position) alone, so a resumed run goes on at the right prompt without any state. A memory
of their difficulty may pass over positions, and changes nothing else.
"""

import hashlib
import logging
import random
from array import array
from collections.abc import Sequence
from functools import lru_cache

from .difficulty import DifficultyMemory
from .prompt_row import PromptRow

log = logging.getLogger(__name__)


class PromptOrder:
    """Positions count prompts over the whole run, from 0, epoch after epoch."""

    def __init__(
        self, rows: Sequence[PromptRow], *, seed: int, shuffle: bool, difficulty: DifficultyMemory | None = None
    ):
        self.rows, self.seed, self.shuffle, self.difficulty = rows, seed, shuffle, difficulty

    def row_at(self, position: int) -> PromptRow:
        return self.rows[self._number_at(position)]

    def epoch_of(self, position: int) -> int:
        return position // len(self.rows)

    def next_from(self, position: int) -> int:
        """The first position, from this one on, that is not passed over. A whole epoch of those ends every rest."""
        if self.difficulty is None:
            return position
        for candidate in range(position, position + len(self.rows)):
            number, epoch = self._number_at(candidate), self.epoch_of(candidate)
            if not self.difficulty.passes_over(number, position=candidate, epoch=epoch):
                return candidate
        log.warning("data.difficulty: all prompts of an epoch rest; they are sampled again from here on")
        self.difficulty.wake_all()
        return position

    def learn(self, position: int, *, solved: float | None, teaches: bool) -> None:
        """Remember how often the prompt at `position` was solved; None when no completion has a score."""
        if self.difficulty is not None and solved is not None:
            self.difficulty.learn(
                self._number_at(position), epoch=self.epoch_of(position), solved=solved, teaches=teaches
            )

    def _number_at(self, position: int) -> int:
        epoch, place = divmod(position, len(self.rows))
        return epoch_order(len(self.rows), epoch, self.seed, self.shuffle)[place]

    def seed_at(self, position: int) -> int:
        return sampling_seed(self.seed, position)


@lru_cache(maxsize=2)  # the groups in flight may be of one epoch and the next
def epoch_order(num_rows: int, epoch: int, seed: int, shuffle: bool) -> Sequence[int]:
    """The row numbers of one epoch in the order they are used; another order for every epoch and seed."""
    if not shuffle:
        return range(num_rows)
    # `shuffle` looks at the length alone: an array, with 8 bytes a row, gets the order that a list would get.
    order = array("q", range(num_rows))
    random.Random(f"order {seed} {epoch}").shuffle(order)
    return order


def sampling_seed(seed: int, position: int) -> int:
    """The sampling seed of prompt `position`, in 0 … 2³¹ - 1. Positions never repeat, so neither do samples."""
    digest = hashlib.blake2b(f"sampling {seed} {position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
