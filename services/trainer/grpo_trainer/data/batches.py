"""Rows become prompts and token ids, some hundred at a time, and all of them are checked before the first step. Those
with a longer prompt than a run takes are left out where it says so.

Which mistake is reported does not depend on the batches: one that the first check finds in the last row comes before
one that the second check finds in the first row.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from ..errors import UsageError
from .images import RowImages
from .prompts import PromptMaker
from .rendering import Prompt
from .values import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS_PER_BATCH = 256
"""Enough for a tokenizer to spread over the cores; a tokenizer needs about 100 bytes for each token of a batch."""


@dataclass(frozen=True)
class RowBatch:
    """Rows in the dataset's order; the lists have one length."""

    numbers: list[int]
    """Of the rows in their dataset, from 0."""
    columns: list[Row]
    prompts: list[Prompt]
    token_ids: list[list[int]]
    images: list[RowImages]

    def add(self, other: "RowBatch", chosen: list[bool]) -> None:
        """Take over the chosen rows of another one."""
        self.numbers.extend(compress(other.numbers, chosen))
        self.columns.extend(compress(other.columns, chosen))
        self.prompts.extend(compress(other.prompts, chosen))
        self.token_ids.extend(compress(other.token_ids, chosen))
        self.images.extend(compress(other.images, chosen))

    def cut(self, count: int) -> tuple["RowBatch", "RowBatch"]:
        """The first `count` rows, and the others."""
        first, others = slice(count), slice(count, None)
        left, right = (
            RowBatch(
                self.numbers[part], self.columns[part], self.prompts[part], self.token_ids[part], self.images[part]
            )
            for part in (first, others)
        )
        return left, right


def prepared_batches(
    rows: Iterable[Row],
    maker: PromptMaker,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    dataset: str,
    lengths: "LengthCheck",
) -> Iterator[RowBatch]:
    """Yield batches of `ROWS_PER_BATCH` rows, the last with what is left, without the rows that `lengths` drops.

    Raises UsageError after the last row, so a consumer keeps nothing before the iterator has ended: a column that the
    prompt needs and the dataset lacks, a prompt that cannot be made, is empty or is refused by `lengths`.
    """
    columns = maker.column_check(dataset)
    same = maker.same_prompt_check(dataset)
    kept = RowBatch([], [], [], [], [])
    no_prompt: UsageError | None = None
    not_rendered: UsageError | None = None
    first_row, remaining = 1, iter(rows)
    has_images = maker.images.column is None
    while batch := list(itertools.islice(remaining, ROWS_PER_BATCH)):
        # After a mistake only the checks before it go on, because only theirs could be reported in its place.
        columns.add(batch, first_row=first_row)
        has_images = has_images or any(maker.images.column in row for row in batch)
        if not columns.failed and no_prompt is None:
            try:
                texts = maker.prompts_of(batch, dataset=dataset, first_row=first_row)
                shown, prompts, images = maker.with_images(batch, texts, dataset=dataset, first_row=first_row)
                tools = maker.tools_of(batch, dataset=dataset, first_row=first_row)
            except UsageError as error:
                no_prompt = error
            if no_prompt is None and not_rendered is None:
                try:
                    token_ids = maker.token_ids(prompts, tokenizer, tools=tools, dataset=dataset, first_row=first_row)
                    maker.check_images(token_ids, images, dataset=dataset, first_row=first_row)
                except UsageError as error:
                    not_rendered = error
                else:
                    same.add(batch, [(ids, one.sources) for ids, one in zip(token_ids, images, strict=True)])
                    numbers = list(range(first_row - 1, first_row - 1 + len(batch)))
                    chosen = lengths.chosen(token_ids, first_row=first_row)
                    kept.add(RowBatch(numbers, shown, prompts, token_ids, images), chosen)
                    if len(kept.numbers) >= ROWS_PER_BATCH:
                        full, kept = kept.cut(ROWS_PER_BATCH)
                        yield full
        first_row += len(batch)
    columns.finish()
    if not has_images:
        raise UsageError(
            f"dataset {dataset} has no column {maker.images.column}, which data.image_column names",
            hint="name the column of its images, or leave data.image_column out",
        )
    if (mistake := no_prompt or not_rendered) is not None:
        raise mistake
    same.finish()
    lengths.finish(num_kept=first_row - 1 - lengths.num_dropped)
    if kept.numbers:
        yield kept


class LengthCheck:
    """No prompt is empty or longer than `max_prompt_length` tokens. `finish` raises for the first that is.

    `drops`: one that is too long is left out.
    """

    def __init__(self, dataset: str, max_prompt_length: int, *, drops: bool = False, may_be_empty: bool = False):
        self.dataset, self.max_prompt_length, self.may_be_empty = dataset, max_prompt_length, may_be_empty
        self.drops = drops
        self.empty_row: int | None = None
        self.too_long: tuple[int, int] | None = None
        """The first row that is too long, from 1, and its tokens."""
        self.num_too_long = self.longest = 0

    @property
    def num_dropped(self) -> int:
        return self.num_too_long if self.drops else 0

    def chosen(self, token_ids: list[list[int]], *, first_row: int) -> list[bool]:
        """Take in the prompts of some rows; return which of them are kept."""
        for number, length in enumerate(map(len, token_ids), start=first_row):
            if length == 0 and self.empty_row is None and not self.may_be_empty:
                self.empty_row = number
            if length > self.max_prompt_length:
                self.too_long = self.too_long or (number, length)
                self.num_too_long += 1
                self.longest = max(self.longest, length)
        return [not self.drops or len(ids) <= self.max_prompt_length for ids in token_ids]

    def finish(self, *, num_kept: int) -> None:
        if self.empty_row is not None:
            raise UsageError(
                f"dataset {self.dataset}, row {self.empty_row}: the prompt is empty", hint="leave the row out"
            )
        if self.too_long is not None and not (self.drops and num_kept):
            row, length = self.too_long
            others = self.num_too_long - 1
            more = f"; so are {others} more, the longest with {self.longest}" if others else ""
            raise UsageError(
                f"dataset {self.dataset}, row {row}: the prompt has {length} tokens and is longer than "
                f"data.max_prompt_length {self.max_prompt_length}{more}",
                hint=f"raise data.max_prompt_length to {self.longest}"
                + ("" if self.drops else ", or leave the rows out by data.overlong_prompts drop"),
            )
