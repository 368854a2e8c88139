"""Data loading: the dataset of a run file becomes prompts, with token ids that are made here and only here.

The rows of a run are kept in its folder, under a fingerprint of everything that decides them, and a restarted trainer
does not tokenize them again. A chat template that renders today's date so keeps the date of the first start.
"""

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config.data import DataConfig
from ..errors import UsageError
from ..extension import file_hash
from .batches import LengthCheck, prepared_batches
from .episode_rows import RowsOfEpisodes, lacks_prompts, source_of, with_environments
from .first_row import prompt_doubts
from .images import USUAL_COLUMNS, ImageColumn
from .prompts import PromptMaker
from .rendering import unread_settings
from .row_store import RowStore, open_rows, write_rows
from .sources import Source, find_source
from .values import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

FORMAT = 9
"""Raise it with every change of this package that gives other rows, prompts or token ids, or writes them otherwise."""
_LIBRARIES = ("transformers", "tokenizers", "jinja2", "datasets", "pyarrow")


def load_prompt_rows(
    config: DataConfig,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    split: Literal["train", "eval"] = "train",
    folder: Path | None = None,
    set_name: str = "",
    of_episodes: RowsOfEpisodes | None = None,
    image_token_id: int | None = None,
) -> RowStore:
    """The rows of `dataset`, or the held-out ones of `eval_dataset`, in the dataset's order; none when it is absent.

    They are kept in `folder`, or without one in a temporary folder that is gone when this returns; `set_name` tells
    apart the files of several sets. Rows `of_episodes` need no prompt. `columns` are all columns of a row, unrenamed,
    and those that a user's own recipe adds. Raises UsageError: a dataset that is missing, unreadable or empty, a column
    that the recipe needs and the dataset lacks, a recipe that fails, a prompt longer than `max_prompt_length`, a row
    that names no class of `episodes.environment_factory`, an image that is not there. `image_token_id`: the token that
    stands for an image; None for a model that sees none.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="grpo-rows-") as temporary:
            return load_prompt_rows(
                config,
                tokenizer,
                split=split,
                folder=Path(temporary),
                set_name=set_name,
                of_episodes=of_episodes,
                image_token_id=image_token_id,
            )
    path = folder / f"rows-{split}{set_name and '-'}{set_name}.arrow"
    of_training, held_out = (config.dataset, config.split), (config.eval_dataset, config.eval_split)
    dataset, source_split = of_training if split == "train" else held_out
    tasks = of_episodes.tasks(split) if of_episodes else None
    if dataset is None and not tasks:
        return write_rows(path, [], None)
    started = time.monotonic()
    source = source_of(tasks) if tasks else find_source(dataset or "", source_split)
    dataset = dataset or source.name
    maker = replace(PromptMaker.of(config), images=image_column(config, source, image_token_id))
    if of_episodes is not None and lacks_prompts(source, maker):
        maker = replace(maker, without_prompt=True)
    environments = of_episodes.environments if of_episodes else []
    lengths = LengthCheck(
        dataset,
        config.max_prompt_length,
        drops=config.overlong_prompts == "drop",
        may_be_empty=maker.without_prompt,
    )
    fingerprint = rows_fingerprint(source, maker, tokenizer, lengths=lengths, environments=environments)
    rows = open_rows(path, fingerprint) if fingerprint else None
    if rows is not None:
        log.info("dataset %s: %d rows are in %s, with their token ids", dataset, len(rows), path)
        return _told(rows, config, maker, tokenizer, dataset)
    read = _Read(source.rows())
    batches = prepared_batches(
        with_environments(maker.rows(read, dataset=dataset), environments, dataset=dataset),
        maker,
        tokenizer,
        dataset=dataset,
        lengths=lengths,
    )
    rows = write_rows(path, batches, fingerprint, rows_digest=read.digest, num_dropped=lambda: lengths.num_dropped)
    log.info("dataset %s: %d rows read and tokenized in %.1f s", dataset, len(rows), time.monotonic() - started)
    return _told(rows, config, maker, tokenizer, dataset)


def image_column(config: DataConfig, source: Source, image_token_id: int | None) -> ImageColumn:
    """Where the rows of `source` have images, and the folder of relative paths: of the run file, or of the rows.

    Raises UsageError for a column of images before a model that sees none.
    """
    if config.image_column is not None and image_token_id is None:
        raise UsageError(
            f"data.image_column is {config.image_column}, and the model sees no images",
            hint="leave it out, or take a vision-language model that docs/model-families.md lists",
        )
    if image_token_id is None:
        return ImageColumn()
    folder = config.image_folder or source.folder
    return ImageColumn(config.image_column, str(Path(folder).expanduser().resolve()), image_token_id)


class _Read:
    """Rows, with a digest of those that have been read."""

    def __init__(self, rows: Iterable[Row]):
        self._rows, self._sha256 = rows, hashlib.sha256()

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self._sha256.update(json.dumps(row).encode() + b"\n")
            yield row

    def digest(self) -> str:
        return self._sha256.hexdigest()


def _told(
    rows: RowStore, config: DataConfig, maker: PromptMaker, tokenizer: "PreTrainedTokenizerBase", dataset: str
) -> RowStore:
    """Log how many rows are left out and what is odd about the first prompt, and return `rows`."""
    if dropped := rows.summary.num_dropped:
        log.warning(
            "dataset %s: %d of %d rows are left out: their prompts are longer than data.max_prompt_length %d",
            dataset, dropped, dropped + len(rows), config.max_prompt_length,
        )  # fmt: skip
    if unseen := [name for name in USUAL_COLUMNS if maker.images.token_id is None and name in rows[0].columns]:
        log.warning("dataset %s: %s is not shown: images of this model are not trained on", dataset, unseen[0])
    if not maker.without_prompt:
        doubts = prompt_doubts(
            rows[0], tokenizer, dataset=dataset, system_replaces=maker.replaces_system(rows[0].columns)
        )
        for doubt in [*doubts, *unread_settings(tokenizer, config.chat_template_kwargs)]:
            log.warning("%s", doubt)
    return rows


def rows_fingerprint(
    source: Source,
    maker: PromptMaker,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    lengths: LengthCheck,
    environments: Sequence[str] = (),
) -> str | None:
    """SHA-256 over everything that decides the rows of a run; None where something of it is not known."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # A tokenizer in Python, or of code that came with the model, may do what its vocabulary does not show.
    if source.identity is None or backend is None or not type(tokenizer).__module__.startswith("transformers."):
        return None
    recipe = maker.filled_recipe
    facts = {name: value for name, value in asdict(maker).items() if name != "without_prompt" or value}
    content: dict[str, Any] = {
        "format": [FORMAT, {name: version(name) for name in _LIBRARIES}],
        "source": [source.identity, source.limit],
        "maker": [facts, asdict(recipe) if recipe else None],
        # Merges, normalizer and added special tokens as well, of which `grpo_proto.fingerprint` knows nothing.
        "tokenizer": [type(tokenizer).__name__, tokenizer.split_special_tokens, backend.to_str()],
        "chat_template": [tokenizer.chat_template, tokenizer.special_tokens_map],
        "lengths": [lengths.max_prompt_length, lengths.drops],
        "environments": list(environments),
    }
    if (code := file_hash(maker.recipe)) is not None:
        content["code"] = code
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()
