"""Prompt: which row is prompt number `position` of the run, and with which seed it is sampled.

Both are functions of (seed, position) alone, so a resumed run goes on at the right prompt without any state. A memory
of their difficulty may pass over positions, and changes nothing else. With several datasets mixture.py gives each
position a dataset, and each dataset has an order and epochs of its own.
"""

import hashlib
import logging
import math
import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .difficulty import DifficultyMemory
from .mixture import RatioSchedule
from .prompt_row import PromptRow

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """A dataset's part in the run: its rows, which follow those of the datasets before it, and its share of prompts."""

    name: str
    num_rows: int
    ratio: float


class PromptOrder:
    """Positions count prompts over the whole run, from 0, epoch after epoch."""

    def __init__(
        self,
        rows: Sequence[PromptRow],
        *,
        seed: int,
        shuffle: bool,
        difficulty: DifficultyMemory | None = None,
        shares: Sequence[Share] = (),
    ):
        """`shares` are the datasets that `rows` are of, in order; none: they are of a single one."""
        self.rows, self.seed, self.difficulty = rows, seed, difficulty
        self.shares = shares or [Share("", len(rows), 1.0)]
        self._schedule = RatioSchedule([share.ratio for share in self.shares])
        self._datasets: list[Epochs] = []
        for share in self.shares:
            first = sum(dataset.num_rows for dataset in self._datasets)
            self._datasets.append(Epochs(first, share.num_rows, dataset_seed(seed, share.name), shuffle))

    def row_at(self, position: int) -> PromptRow:
        return self.rows[self._draw(position)[0]]

    def _draw(self, position: int) -> tuple[int, int]:
        """The row number among the rows of all datasets, and the epoch of its dataset."""
        dataset, place = self._schedule.at(position)
        return self._datasets[dataset].draw(place)

    def metrics(self, last: int) -> dict[str, float]:
        """Passes over each of several datasets up to position `last`, and what is known of the prompts by then."""
        drawn = [share.ratio * (1 + last) for share in self.shares]
        found = {
            f"data/{share.name}/epoch": count / share.num_rows
            for share, count in zip(self.shares, drawn, strict=True)
            if share.name
        }
        if self.difficulty is not None:
            places = [max(0, math.ceil(count) - 1) for count in drawn]
            epochs = [place // share.num_rows for place, share in zip(places, self.shares, strict=True)]
            firsts = [dataset.first for dataset in self._datasets]
            found |= self.difficulty.metrics(epoch_of=lambda row: epochs[bisect_right(firsts, row) - 1])
        return found

    def next_from(self, position: int) -> int:
        """The first position, from this one on, that is not passed over. A whole epoch of those ends every rest."""
        if self.difficulty is None:
            return position
        for candidate in range(position, position + len(self.rows)):
            number, epoch = self._draw(candidate)
            if not self.difficulty.passes_over(number, position=candidate, epoch=epoch):
                return candidate
        log.warning("data.difficulty: all prompts of an epoch rest; they are sampled again from here on")
        self.difficulty.wake_all()
        return position

    def learn(self, position: int, *, solved: float | None, teaches: bool) -> None:
        """Remember how often the prompt at `position` was solved; None when no completion has a score."""
        if self.difficulty is not None and solved is not None:
            number, epoch = self._draw(position)
            self.difficulty.learn(number, epoch=epoch, solved=solved, teaches=teaches)

    def seed_at(self, position: int) -> int:
        return sampling_seed(self.seed, position)


class Epochs:
    """The rows `first` to `first + num_rows` of the run, epoch after epoch."""

    def __init__(self, first: int, num_rows: int, seed: int, shuffle: bool):
        self.first, self.num_rows, self.seed, self.shuffle = first, num_rows, seed, shuffle
        # The groups in flight may be of one epoch and the next.
        self._order = lru_cache(maxsize=2)(epoch_order)

    def draw(self, place: int) -> tuple[int, int]:
        """The row number and the epoch of prompt number `place` of this dataset."""
        epoch, place = divmod(place, self.num_rows)
        return self.first + self._order(self.num_rows, epoch, self.seed, self.shuffle)[place], epoch


def dataset_seed(seed: int, name: str) -> int:
    """The seed of a dataset's order: datasets of equal length must not go through their rows in step."""
    if not name:
        return seed
    return int.from_bytes(hashlib.blake2b(f"dataset {seed} {name}".encode(), digest_size=8).digest(), "big")


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
