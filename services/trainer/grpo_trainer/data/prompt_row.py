"""What a row of the dataset becomes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PromptRow:
    """One row of a dataset, ready to sample from. `columns` are all its columns, under their own names."""

    index: int
    token_ids: list[int]
    prompt: str | list[dict[str, str]]
    columns: dict[str, Any]
    dataset: str = ""
    """Its name in `data.datasets`, or `eval/<name>` for one in `data.eval_datasets`; empty where it has no name."""
