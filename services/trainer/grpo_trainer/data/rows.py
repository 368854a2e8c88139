"""Data loading: the dataset of a run file becomes prompts, with token ids that are made here and only here.

`sources.py` reads rows, `prompts.py` and `recipes/` make prompts of them, `stages/prompt.py` chooses their order.
"""

from typing import TYPE_CHECKING, Literal

from ..config.run_config import DataConfig
from ..errors import UsageError
from .prompt_row import PromptRow
from .prompts import PromptMaker
from .sources import read_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_prompt_rows(
    config: DataConfig, tokenizer: "PreTrainedTokenizerBase", *, split: Literal["train", "eval"] = "train"
) -> list[PromptRow]:
    """The rows to train on, or the held-out ones (none when `eval_dataset` is absent), in the dataset's order.

    `columns` are all columns of a row, unrenamed. Raises UsageError: a dataset that is missing, unreadable or empty, a
    column that the recipe needs and the dataset lacks, a prompt longer than `max_prompt_length`.
    """
    if split == "train":
        dataset, source_split = config.dataset, config.split
    elif config.eval_dataset is None:
        return []
    else:
        dataset, source_split = config.eval_dataset, config.eval_split
    rows = read_rows(dataset, source_split)
    maker = PromptMaker.of(config)
    prompts = maker.prompts(rows, dataset=dataset)
    token_ids = maker.token_ids(prompts, tokenizer, dataset=dataset)
    _check_lengths(token_ids, config.max_prompt_length, dataset)
    return [
        PromptRow(index=index, token_ids=ids, prompt=prompt, columns=row)
        for index, (ids, prompt, row) in enumerate(zip(token_ids, prompts, rows, strict=True))
    ]


def _check_lengths(token_ids: list[list[int]], max_prompt_length: int, dataset: str) -> None:
    lengths = [len(ids) for ids in token_ids]
    if 0 in lengths:
        raise UsageError(
            f"dataset {dataset}, row {lengths.index(0) + 1}: the prompt is empty", hint="leave the row out"
        )
    too_long = [number for number, length in enumerate(lengths, start=1) if length > max_prompt_length]
    if too_long:
        more = f"; so are {len(too_long) - 1} more, the longest with {max(lengths)}" if len(too_long) > 1 else ""
        raise UsageError(
            f"dataset {dataset}, row {too_long[0]}: the prompt has {lengths[too_long[0] - 1]} tokens and is longer "
            f"than data.max_prompt_length {max_prompt_length}{more}",
            hint=f"raise data.max_prompt_length to {max(lengths)}, or leave the rows out",
        )
