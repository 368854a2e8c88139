"""Turn rows into token ids: the prompt exactly as in a run, then the completion and the end-of-sequence token.

Three kinds of rows: a recipe's columns and a completion; a prompt (text or messages) and a completion; a conversation
in `messages`, whose last message is the completion.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ..config.cold_start import ColdStartData
from ..data.columns import check_columns
from ..data.prompts import PromptMaker
from ..data.sources import read_rows
from ..data.values import Row
from ..errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Example(TypedDict):
    """`completion_mask` is 1 where the loss is taken: on the completion and its end-of-sequence token."""

    input_ids: list[int]
    completion_mask: list[int]


def load_examples(config: ColdStartData, tokenizer: "PreTrainedTokenizerBase") -> list[Example]:
    """All rows of the dataset. Raises UsageError."""
    if tokenizer.eos_token_id is None:
        raise UsageError(
            f"the tokenizer of {tokenizer.name_or_path} has no end-of-sequence token, so no completion would ever end",
            hint="set eos_token in its tokenizer_config.json",
        )
    maker = PromptMaker.of(config)
    rows = list(maker.rows(read_rows(config.dataset, config.split), dataset=config.dataset))
    rows, completions = _with_completions(rows, config)
    prompts = maker.prompts(rows, dataset=config.dataset)
    tools = maker.tools_of(rows, dataset=config.dataset)
    prompt_ids = maker.token_ids(prompts, tokenizer, tools=tools, dataset=config.dataset)
    # Train on the end as well: sampling stops only where the model emits it.
    completion_ids = [
        [*ids, tokenizer.eos_token_id] for ids in tokenizer(completions, add_special_tokens=False)["input_ids"]
    ]
    _check_lengths(prompt_ids, completion_ids, config)
    return [
        Example(input_ids=prompt + completion, completion_mask=[0] * len(prompt) + [1] * len(completion))
        for prompt, completion in zip(prompt_ids, completion_ids, strict=True)
    ]


def _with_completions(rows: Sequence[Row], config: ColdStartData) -> tuple[list[Row], list[str]]:
    """Return the rows, each with a prompt, and the completions to learn."""
    columns = {name for row in rows for name in row}
    if config.completion_column not in columns and config.messages_column in columns and config.recipe == "none":
        return _split_conversations(rows, config)
    check_columns(rows, [config.completion_column], dataset=config.dataset, needed_by="data.completion_column")
    return list(rows), [
        _completion(row[config.completion_column], f"dataset {config.dataset}, row {number}")
        for number, row in enumerate(rows, start=1)
    ]


def _split_conversations(rows: Sequence[Row], config: ColdStartData) -> tuple[list[Row], list[str]]:
    check_columns(rows, [config.messages_column], dataset=config.dataset, needed_by="data.messages_column")
    prompts, completions = [], []
    for number, row in enumerate(rows, start=1):
        messages = row[config.messages_column]
        where = f"dataset {config.dataset}, row {number}"
        if not isinstance(messages, list) or len(messages) < 2:
            raise UsageError(
                f"{where}: {config.messages_column} is not a conversation",
                hint='write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
            )
        completions.append(_completion(messages[-1:], where))
        prompts.append({**row, config.prompt_column: messages[:-1]})
    return prompts, completions


def _completion(value: Any, where: str) -> str:
    """Return the text, or the content of the single assistant message."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        message = value[0]
        if message.get("role") != "assistant":
            raise UsageError(f"{where}: the completion is a message of `{message.get('role')}`, not of the assistant")
        value = message.get("content")
    if not isinstance(value, str):
        raise UsageError(
            f"{where}: the completion is neither text nor a single assistant message",
            hint='write "…" or [{"role": "assistant", "content": "…"}]',
        )
    return value


def _check_lengths(prompts: list[list[int]], completions: list[list[int]], config: ColdStartData) -> None:
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    too_long = [number for number, length in enumerate(lengths, start=1) if length > config.max_length]
    if too_long:
        more = f"; so are {len(too_long) - 1} more, the longest with {max(lengths)}" if len(too_long) > 1 else ""
        raise UsageError(
            f"dataset {config.dataset}, row {too_long[0]}: prompt and completion have {lengths[too_long[0] - 1]} "
            f"tokens, more than data.max_length {config.max_length}{more}",
            hint=f"raise data.max_length to {max(lengths)}, or leave the rows out",
        )
