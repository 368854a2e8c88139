"""Prompt: which row is prompt number `position` of the run, and with which seed it is sampled.

Both are functions of (seed, position) alone, so a resumed run goes on at the right prompt without any state.
"""

import hashlib
import random
from array import array
from collections.abc import Sequence
from functools import lru_cache

from .prompt_row import PromptRow


class PromptOrder:
    """Positions count prompts over the whole run, from 0, epoch after epoch."""

    def __init__(self, rows: Sequence[PromptRow], *, seed: int, shuffle: bool):
        self.rows, self.seed, self.shuffle = rows, seed, shuffle

    def row_at(self, position: int) -> PromptRow:
        epoch, number = divmod(position, len(self.rows))
        return self.rows[epoch_order(len(self.rows), epoch, self.seed, self.shuffle)[number]]

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
