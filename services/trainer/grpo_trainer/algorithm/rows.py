"""Rows: which sequences share a row of a micro-batch, and how many fit into one.

    padded    a row for each sequence, padded to the longest
    packed    short sequences share rows that are as long as the longest sequence
    one_row   all sequences in one row, without padding

Position ids that begin again at 0 keep the sequences of a row apart: transformers makes a block-diagonal mask of them.
sdpa and eager attention then still compute the square of a row, most of it masked; hence rows as short as possible.
Flash attention computes each sequence by itself, whatever the length of the row, and reads position ids only when
there is one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

RowLayout = Literal["padded", "packed", "one_row"]


@dataclass
class Rows:
    """Rows of `length` tokens while sequences are put into them."""

    length: int
    free: list[int] = field(default_factory=list)
    """Tokens at the end of each row that are not taken."""

    def put(self, num_tokens: int) -> tuple[int, int]:
        """Put a sequence into the first row with room, or a new one. Returns its row and its first column."""
        row = next((row for row, free in enumerate(self.free) if free >= num_tokens), len(self.free))
        if row == len(self.free):
            self.free.append(self.length)
        column = self.length - self.free[row]
        self.free[row] -= num_tokens
        return row, column


def place(lengths: Sequence[int], layout: RowLayout) -> list[tuple[int, int]]:
    """Return the row and the first column of each sequence of one micro-batch, `lengths` in tokens."""
    if layout == "padded":
        return [(row, 0) for row in range(len(lengths))]
    rows = Rows(sum(lengths) if layout == "one_row" else max(lengths, default=0))
    return [rows.put(num_tokens) for num_tokens in lengths]


def fill(longest_first: Sequence[Sequence[int]], budget: int, layout: RowLayout) -> list[list[int]]:
    """First fit, longest first: the episodes of each micro-batch, with rows × length of a row ≤ `budget` tokens.

    `longest_first` has the lengths of each episode's sequences. A sequence that fits into no row of a micro-batch is
    left for the next, whose rows are as long as the longest that is left. An episode beyond the budget has a
    micro-batch of its own.
    """
    filled: list[list[int]] = []
    left = list(range(len(longest_first)))
    while left:
        first = longest_first[left[0]]
        rows = Rows(max(budget, sum(first)) if layout == "one_row" else max(first))
        taken: list[int] = []
        for number in left:
            tried = replace(rows, free=[*rows.free])
            for num_tokens in longest_first[number]:
                tried.put(num_tokens)
            if not taken or len(tried.free) * tried.length <= budget:
                taken.append(number)
                rows = tried
        filled.append(taken)
        chosen = set(taken)
        left = [number for number in left if number not in chosen]
    return filled
