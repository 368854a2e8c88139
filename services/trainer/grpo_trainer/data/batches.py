"""Rows become prompts and token ids, some hundred at a time, and all of them are checked before the first step.

Which mistake is reported does not depend on the batches: one that the first check finds in the last row comes before
one that the second check finds in the first row.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
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

    columns: list[Row]
    prompts: list[Prompt]
    token_ids: list[list[int]]


def prepared_batches(
    rows: Iterable[Row],
    maker: PromptMaker,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    dataset: str,
    max_prompt_length: int,
) -> Iterator[RowBatch]:
    """Yield batches of `ROWS_PER_BATCH` rows, the last with what is left.

    Raises UsageError after the last row, so a consumer keeps nothing before the iterator has ended: a column that the
    prompt needs and the dataset lacks, a prompt that cannot be made, is empty or has more than `max_prompt_length`
    tokens.
    """
    columns = maker.column_check(dataset)
    same = maker.same_prompt_check(dataset)
    lengths = LengthCheck(dataset, max_prompt_length, may_be_empty=maker.without_prompt)
    no_prompt: UsageError | None = None
    not_rendered: UsageError | None = None
    first_row, remaining = 1, iter(rows)
    while batch := list(itertools.islice(remaining, ROWS_PER_BATCH)):
        # After a mistake only the checks before it go on, because only theirs could be reported in its place.
        columns.add(batch, first_row=first_row)
        if not columns.failed and no_prompt is None:
            try:
                prompts = maker.prompts_of(batch, dataset=dataset, first_row=first_row)
                tools = maker.tools_of(batch, dataset=dataset, first_row=first_row)
            except UsageError as error:
                no_prompt = error
            if no_prompt is None and not_rendered is None:
                try:
                    token_ids = maker.token_ids(prompts, tokenizer, tools=tools, dataset=dataset, first_row=first_row)
                except UsageError as error:
                    not_rendered = error
                else:
                    same.add(batch, token_ids)
                    lengths.add(token_ids, first_row=first_row)
                    yield RowBatch(batch, prompts, token_ids)
        first_row += len(batch)
    columns.finish()
    if (mistake := no_prompt or not_rendered) is not None:
        raise mistake
    same.finish()
    lengths.finish()


class LengthCheck:
    """No prompt is empty or longer than `max_prompt_length` tokens. `finish` raises for the first that is."""

    def __init__(self, dataset: str, max_prompt_length: int, *, may_be_empty: bool = False):
        self.dataset, self.max_prompt_length, self.may_be_empty = dataset, max_prompt_length, may_be_empty
        self.empty_row: int | None = None
        self.too_long: tuple[int, int] | None = None
        """The first row that is too long, from 1, and its tokens."""
        self.num_too_long = self.longest = 0

    def add(self, token_ids: list[list[int]], *, first_row: int) -> None:
        for number, length in enumerate(map(len, token_ids), start=first_row):
            if length == 0 and self.empty_row is None and not self.may_be_empty:
                self.empty_row = number
            if length > self.max_prompt_length:
                self.too_long = self.too_long or (number, length)
                self.num_too_long += 1
                self.longest = max(self.longest, length)

    def finish(self) -> None:
        if self.empty_row is not None:
            raise UsageError(
                f"dataset {self.dataset}, row {self.empty_row}: the prompt is empty", hint="leave the row out"
            )
        if self.too_long is not None:
            row, length = self.too_long
            others = self.num_too_long - 1
            more = f"; so are {others} more, the longest with {self.longest}" if others else ""
            raise UsageError(
                f"dataset {self.dataset}, row {row}: the prompt has {length} tokens and is longer than "
                f"data.max_prompt_length {self.max_prompt_length}{more}",
                hint=f"raise data.max_prompt_length to {self.longest}, or leave the rows out",
            )
