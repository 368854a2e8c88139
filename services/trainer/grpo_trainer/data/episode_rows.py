"""Rows of episodes: they need no prompt, because an environment says what is asked, and may be numbers alone."""

from dataclasses import dataclass
from typing import Literal

from ..config.run_config import RunConfig
from ..extension import file_of
from .prompts import PromptMaker
from .sources import Source

TASK_COLUMN = "task"
"""The only column of rows that are numbers."""


@dataclass(frozen=True)
class RowsOfEpisodes:
    """`num_tasks`, `num_held_out`: rows that are only numbers, the held-out ones behind the others; 0: of a dataset."""

    num_tasks: int = 0
    num_held_out: int = 0

    @classmethod
    def of(cls, config: RunConfig) -> "RowsOfEpisodes | None":
        """None for a run of single turns."""
        if config.episodes is None:
            return None
        num_tasks = config.episodes.num_tasks or 0
        return cls(num_tasks, config.eval.max_rows or 0 if num_tasks else 0)

    def tasks(self, split: Literal["train", "eval"]) -> range:
        first, count = (0, self.num_tasks) if split == "train" else (self.num_tasks, self.num_held_out)
        return range(first, first + count)


def source_of(tasks: range) -> Source:
    """A row for each task: its number."""
    identity = ["tasks", tasks.start, tasks.stop]
    return Source(f"of {len(tasks)} tasks", None, identity, lambda: iter({TASK_COLUMN: task} for task in tasks))


def lacks_prompts(source: Source, maker: PromptMaker) -> bool:
    """Whether the rows of `source` have no prompt: its first row has no such column, and no recipe makes one."""
    if maker.filled_recipe is not None or file_of(maker.recipe) is not None:
        return False
    first = next(iter(source.rows()), None)
    return first is not None and first.get(maker.prompt_column) is None
