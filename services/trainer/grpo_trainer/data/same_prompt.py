"""One and the same prompt for rows that differ: a template that fills in only what is equal in all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError


class SamePromptCheck:
    """Rows that differ do not all have one prompt. Without a `template` nothing is checked."""

    def __init__(self, dataset: str, template: str | None):
        self.dataset, self.template = dataset, template
        self.num_rows = 0
        self.first: tuple[Mapping[str, Any], object] | None = None
        self.rows_differ = self.prompts_differ = False

    def add(self, rows: Sequence[Mapping[str, Any]], prompts: Sequence[object]) -> None:
        """`prompts`: whatever is equal for equal prompts."""
        self.num_rows += len(rows)
        for row, prompt in zip(rows, prompts, strict=True):
            if self.prompts_differ:
                return
            self.first = self.first or (row, prompt)
            self.prompts_differ = prompt != self.first[1]
            self.rows_differ = self.rows_differ or row != self.first[0]

    def finish(self) -> None:
        """Raise UsageError when all prompts are one."""
        if self.template is not None and self.rows_differ and not self.prompts_differ and self.first is not None:
            raise UsageError(
                f"dataset {self.dataset}: all {self.num_rows} rows get one and the same prompt, though they differ: "
                f"{self.template[:80]}",
                hint=f"fill in the column that differs, of {', '.join(self.first[0])}, in data.prompt_template",
            )
