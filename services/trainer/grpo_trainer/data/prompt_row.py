"""What a row of the dataset becomes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload


@dataclass(frozen=True)
class PromptRow:
    """One row of a dataset, ready to sample from. `columns` are all its columns, under their own names."""

    index: int
    token_ids: list[int]
    prompt: str | list[dict[str, Any]]
    columns: dict[str, Any]
    dataset: str = ""
    """Its name in `data.datasets`, or `eval/<name>` for one in `data.eval_datasets`; empty where it has no name."""
    images: tuple[str, ...] = ()
    """Where its images are, see images.py; `token_ids` has the model's token once for each, or is empty."""
    image_column: tuple[str, bool] | None = None
    """The column that it had for them, which `columns` may lack, and whether that held a list."""


class PromptRows(Sequence[PromptRow]):
    """Rows by number or slice, from `_row`."""

    @abstractmethod
    def _row(self, number: int) -> PromptRow:
        """Row `number`, from 0 to `len(self)` - 1."""

    @overload
    def __getitem__(self, number: int) -> PromptRow: ...

    @overload
    def __getitem__(self, number: slice) -> list[PromptRow]: ...

    def __getitem__(self, number: int | slice) -> PromptRow | list[PromptRow]:
        found = range(len(self))[number]
        return self._row(found) if isinstance(found, int) else [self._row(index) for index in found]
