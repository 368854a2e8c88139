"""Rows of episodes: they need no prompt, because an environment says what is asked, and may be numbers alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..config.episodes import ENVIRONMENT_COLUMN
from ..config.run_config import RunConfig
from ..errors import UsageError
from ..extension import file_of
from .prompts import PromptMaker
from .sources import Source
from .values import Row

TASK_COLUMN = "task"
"""The only column of rows that are numbers."""


@dataclass(frozen=True)
class RowsOfEpisodes:
    """`num_tasks`, `num_held_out`: rows that are only numbers, the held-out ones behind the others; 0: of a dataset.
    `environments`: the names that a row's column `environment` may have; empty: any, or none."""

    num_tasks: int = 0
    num_held_out: int = 0
    environments: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig) -> "RowsOfEpisodes | None":
        """None for a run of single turns."""
        if config.episodes is None:
            return None
        num_tasks = config.episodes.num_tasks or 0
        environments = tuple(name for name in config.episodes.factories if name)
        return cls(num_tasks, config.eval.max_rows or 0 if num_tasks else 0, environments)

    def tasks(self, split: Literal["train", "eval"]) -> range:
        first, count = (0, self.num_tasks) if split == "train" else (self.num_tasks, self.num_held_out)
        return range(first, first + count)


def source_of(tasks: range) -> Source:
    """A row for each task: its number."""
    identity = ["tasks", tasks.start, tasks.stop]
    return Source(f"of {len(tasks)} tasks", None, identity, lambda: iter({TASK_COLUMN: task} for task in tasks))


def with_environments(rows: Iterable[Row], environments: Sequence[str], *, dataset: str) -> Iterator[Row]:
    """`rows`; raises UsageError for the first that names none of `environments`, unless these are empty."""
    for number, row in enumerate(rows, start=1):
        if environments and (named := row.get(ENVIRONMENT_COLUMN)) not in environments:
            raise UsageError(
                f"dataset {dataset}, row {number}: its {ENVIRONMENT_COLUMN} is {named!r}, which is none of "
                f"episodes.environment_factory: {', '.join(environments)}",
                hint=f"name one of them in the column {ENVIRONMENT_COLUMN} of every row, held-out ones too",
            )
        yield row


def lacks_prompts(source: Source, maker: PromptMaker) -> bool:
    """Whether the rows of `source` have no prompt: its first row has no such column, and no recipe makes one."""
    if maker.filled_recipe is not None or file_of(maker.recipe) is not None:
        return False
    first = next(iter(source.rows()), None)
    return first is not None and first.get(maker.prompt_column) is None
