"""The rows of all datasets of a run file, to train on and held out, by the names that they have there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.data import DataConfig
from ..config.run_config import RunConfig
from ..errors import UsageError
from .demonstrations import Example
from .episode_rows import RowsOfEpisodes
from .order import Share
from .prompt_row import PromptRow, PromptRows
from .row_store import RowStore
from .rows import load_prompt_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


PROBE_TEXT = "What is served must be what is trained."
"""Stands for the prompts of rows that have none."""


class TrainingRows(PromptRows):
    """The rows of the datasets, one dataset after the other. A row's `index` counts within its own dataset."""

    def __init__(self, stores: Mapping[str, RowStore]):
        self.stores = stores

    def __len__(self) -> int:
        return sum(map(len, self.stores.values()))

    def _row(self, number: int) -> PromptRow:
        for name, store in self.stores.items():
            if number < len(store):
                return replace(store[number], dataset=name)
            number -= len(store)
        raise IndexError(number)

    @property
    def first_rows(self) -> list[PromptRow]:
        """The first row of each dataset."""
        return [replace(store[0], dataset=name) for name, store in self.stores.items()]

    @property
    def longest_prompt(self) -> int:
        """In tokens."""
        return max(store.summary.longest_prompt for store in self.stores.values())

    @property
    def most_images(self) -> int:
        """Of a row."""
        return max(store.summary.most_images for store in self.stores.values())

    @property
    def first_with_images(self) -> PromptRow | None:
        """The first row whose prompt has images; None without any."""
        stores = (store for store in self.stores.values() if store.summary.first_with_images is not None)
        store = next(stores, None)
        return None if store is None else store[store.summary.first_with_images or 0]

    @property
    def shortest_prompt(self) -> int:
        """In tokens."""
        return min(store.summary.shortest_prompt for store in self.stores.values())

    def shares(self, config: DataConfig) -> list[Share]:
        """The part of each dataset in the run; empty for a single dataset, which has no name."""
        return [Share(name, len(self.stores[name]), chosen.ratio) for name, chosen in config.datasets.items()]


class HeldOutRows(dict[str, RowStore]):
    """The held-out rows of each set by its name; those of `data.eval_dataset` have the empty name."""

    @property
    def first_rows(self) -> list[PromptRow]:
        """The first row of each set that has rows."""
        return [replace(store[0], dataset=f"eval/{name}") for name, store in self.items() if len(store)]

    @property
    def longest_prompt(self) -> int:
        """In tokens; 0 without rows."""
        return max((store.summary.longest_prompt for store in self.values()), default=0)

    @property
    def most_images(self) -> int:
        """Of a row."""
        return max((store.summary.most_images for store in self.values()), default=0)


def load_training_rows(
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    folder: Path | None = None,
    of_episodes: RowsOfEpisodes | None = None,
    image_token_id: int | None = None,
) -> TrainingRows:
    """The rows of `data.datasets` by name; those of `data.dataset` under the empty name. See `load_prompt_rows`."""
    load = partial(
        load_prompt_rows,
        tokenizer=tokenizer,
        split="train",
        folder=folder,
        of_episodes=of_episodes,
        image_token_id=image_token_id,
    )
    if not config.datasets:
        return TrainingRows({"": load(config)})
    stores = {}
    for name in config.datasets:
        try:
            stores[name] = load(config.of_dataset(name), set_name=name)
        except UsageError as error:
            raise UsageError(f"data.datasets.{name}: {error.message}", hint=error.hint) from error
    return TrainingRows(stores)


def load_eval_sets(
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    folder: Path | None = None,
    of_episodes: RowsOfEpisodes | None = None,
    image_token_id: int | None = None,
) -> HeldOutRows:
    """The held-out rows of the run; see `load_prompt_rows`."""
    load = partial(
        load_prompt_rows,
        tokenizer=tokenizer,
        split="eval",
        folder=folder,
        of_episodes=of_episodes,
        image_token_id=image_token_id,
    )
    if not config.eval_datasets:
        return HeldOutRows({"": load(config)})
    return HeldOutRows({name: load(config.of_eval_dataset(name), set_name=name) for name in config.eval_datasets})


def longest_context(config: RunConfig, *rows: TrainingRows | HeldOutRows) -> int:
    """Tokens of the longest sequence that a server must take: of episodes their limit, or at least a prompt."""
    longest = max(one.longest_prompt for one in rows)
    if config.episodes is not None:
        return config.episodes.max_context_tokens or longest + 1
    return longest + config.rollout.max_completion_length


def few_rows(rows: TrainingRows, config: RunConfig) -> list[str]:
    """Return a sentence where one step samples every prompt more than once."""
    asked = config.rollout.groups_per_batch
    if len(rows) >= asked:
        return []
    return [
        f"{len(rows)} rows are fewer than the {asked} prompts of a step, which so has each of them several times: a "
        "smaller rollout.generation_batch_size makes more steps of an epoch"
    ]


def check_vocabulary(
    rows: TrainingRows, eval_rows: HeldOutRows, demonstrations: Sequence[Example], *, vocab_size: int
) -> None:
    """Raises UsageError for a token that the model has no embedding of."""
    stores = [*rows.stores.values(), *eval_rows.values()]
    of_prompts = max((store.summary.largest_token for store in stores), default=-1)
    of_demonstrations = max((max(example["input_ids"]) for example in demonstrations), default=-1)
    if (largest := max(of_prompts, of_demonstrations)) >= vocab_size:
        what = "prompts" if largest == of_prompts else "demonstrations"
        raise UsageError(
            f"the {what} hold token {largest}, and the model's vocabulary ends at {vocab_size - 1}",
            hint="its tokenizer has tokens that the model has not: take the tokenizer that belongs to it, or enlarge "
            "the model by resize_token_embeddings, and serve that",
        )


def rows_with_prompts(rows: TrainingRows, tokenizer: "PreTrainedTokenizerBase") -> Sequence[PromptRow]:
    """Rows to try the servers and the model on: `rows`, or one of a fixed text where none of them has a prompt."""
    return rows if rows.longest_prompt else [PromptRow(0, tokenizer(PROBE_TEXT)["input_ids"], PROBE_TEXT, {})]
