"""Turn demonstrations into token ids: the prompt exactly as in a run, then the completion and its end.

The end of an answer to messages is what the chat template writes there (answer_turn.py). Without a chat template, and
after a prompt that is text, it is the end-of-sequence token.

Three kinds of rows: a recipe's columns and a completion; a prompt (text or messages) and a completion; a conversation
in `messages`, whose last message is the completion; or each of the assistant's is one, behind what came before it, as a
run would have sampled it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ..config.chord import ChordConfig
from ..config.cold_start import ColdStartData
from ..config.data import DataConfig
from ..errors import UsageError
from .answer_turn import PARTS, Answer, AnswerTurn
from .columns import check_columns
from .messages import content_text, read_message
from .prompts import PromptMaker
from .sources import read_rows
from .values import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Answered(NamedTuple):
    """A row with its prompt."""

    row: Row
    answer: Answer
    number: int
    """Of the row in the dataset, from 1."""


class Example(TypedDict):
    """`completion_mask` is 1 where the loss is taken: on the completion and its end, which is the last token."""

    input_ids: list[int]
    completion_mask: list[int]


def load_demonstrations(
    chord: ChordConfig | None, data: DataConfig, tokenizer: "PreTrainedTokenizerBase"
) -> list[Example]:
    """Those that a run imitates; none without `chord`. Raises UsageError."""
    if chord is None:
        return []
    try:
        examples = load_examples(chord.rows_of(data), tokenizer, called=_in_chord)
    except UsageError as error:
        raise UsageError(f"chord: {error.message}", hint=error.hint) from error
    for number, example in enumerate(examples, start=1):
        if example["completion_mask"][0]:
            raise UsageError(
                f"chord: demonstration {number} of {chord.sft_dataset} has an empty prompt: no token comes before its "
                "answer, of which the policy could be asked for the first one",
                hint="give it a prompt, or leave the row out",
            )
    return examples


def _in_chord(name: str) -> str:
    """The setting of a run file in which a demonstration has what a cold start has under `name`."""
    return f"chord.{'sft_' if name == 'max_length' else ''}{name}"


def load_examples(
    config: ColdStartData, tokenizer: "PreTrainedTokenizerBase", *, called: Callable[[str], str] = "data.{}".format
) -> list[Example]:
    """All rows of the dataset. `called` names a setting in messages. Raises UsageError."""
    maker = PromptMaker.of(config)
    rows = list(maker.rows(read_rows(config.dataset, config.split), dataset=config.dataset))
    answered = _with_answers(rows, config, called)
    rows = [one.row for one in answered]
    prompts = maker.prompts(rows, dataset=config.dataset)
    tools = maker.tools_of(rows, dataset=config.dataset)
    prompt_ids = maker.token_ids(prompts, tokenizer, tools=tools, dataset=config.dataset)
    turn = AnswerTurn(tokenizer, prompts, maker.chat_template_kwargs)
    texts = [
        turn.written(prompt, one.answer, of_row, f"dataset {config.dataset}, row {one.number}")
        for prompt, one, of_row in zip(prompts, answered, tools, strict=True)
    ]
    # Train on the end as well: sampling stops only where the model emits it.
    has_end = [bool(turn.end) and not isinstance(prompt, str) for prompt in prompts]
    if not all(has_end) and tokenizer.eos_token_id is None:
        raise UsageError(
            f"the tokenizer of {tokenizer.name_or_path} has no end-of-sequence token, so no completion would ever end",
            hint="set eos_token in its tokenizer_config.json",
        )
    completion_ids = [
        ids if ends else [*ids, tokenizer.eos_token_id]
        for ids, ends in zip(tokenizer(texts, add_special_tokens=False)["input_ids"], has_end, strict=True)
    ]
    _check_lengths(prompt_ids, completion_ids, [one.number for one in answered], config, called)
    return [
        Example(input_ids=prompt + completion, completion_mask=[0] * len(prompt) + [1] * len(completion))
        for prompt, completion in zip(prompt_ids, completion_ids, strict=True)
    ]


def check_context(examples: Sequence[Example], *, context: int | None) -> None:
    """Raises UsageError for an example longer than the model's `context` in tokens; None is unknown."""
    longest = max((len(example["input_ids"]) for example in examples), default=0)
    if context is not None and longest > context:
        raise UsageError(
            f"a demonstration of chord.sft_dataset has {longest} tokens, and the model's context ends at {context}",
            hint=f"set chord.sft_max_length to {context}, which names the rows, and leave them out",
        )


def digest_of(examples: Sequence[Example]) -> str:
    """Return what tells these examples from others."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr((example["input_ids"], example["completion_mask"])).encode())
    return digest.hexdigest()


def _with_answers(rows: Sequence[Row], config: ColdStartData, called: Callable[[str], str]) -> list[_Answered]:
    """Return the rows, each with a prompt, and the answers to learn."""
    columns = {name for row in rows for name in row}
    if config.completion_column not in columns and config.messages_column in columns and config.recipe == "none":
        check_columns(rows, [config.messages_column], dataset=config.dataset, needed_by=called("messages_column"))
        return [one for number, row in enumerate(rows, start=1) for one in _split(row, number, config)]
    if config.learned_messages == "all":
        raise UsageError(
            f"{called('learned_messages')} all is for whole conversations, and the rows have a single completion each",
            hint=f"give them in {config.messages_column}, without a recipe and a column {config.completion_column}",
        )
    check_columns(rows, [config.completion_column], dataset=config.dataset, needed_by=called("completion_column"))
    return [
        _Answered(row, _completion(row[config.completion_column], f"dataset {config.dataset}, row {number}"), number)
        for number, row in enumerate(rows, start=1)
    ]


def _split(row: Row, number: int, config: ColdStartData) -> Iterator[_Answered]:
    """Cut a conversation before the assistant's messages that are learned."""
    messages, where = row[config.messages_column], f"dataset {config.dataset}, row {number}"
    if not isinstance(messages, list) or len(messages) < 2:
        raise UsageError(
            f"{where}: {config.messages_column} is not a conversation",
            hint='write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
        )
    places = [len(messages) - 1]
    if config.learned_messages == "all":
        roles = [read_message(message, where).get("role") for message in messages]
        places = [place for place, role in enumerate(roles) if role == "assistant" and place > 0]
        if not places:
            raise UsageError(f"{where}: no message of {config.messages_column} is an answer of the assistant")
    for place in places:
        prompt = {**row, config.prompt_column: messages[:place]}
        yield _Answered(prompt, _completion(messages[place : place + 1], where), number)


def _completion(value: Any, where: str) -> Answer:
    """Return the text, or the single assistant message if it has more than a text."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        message = value[0]
        if message.get("role") != "assistant":
            raise UsageError(f"{where}: the completion is a message of `{message.get('role')}`, not of the assistant")
        message = read_message(message, where)
        if any(message.get(part) for part in PARTS):
            return message
        value = content_text(message)
    if not isinstance(value, str):
        raise UsageError(
            f"{where}: the completion is neither text nor a single assistant message",
            hint='write "…" or [{"role": "assistant", "content": "…"}]',
        )
    return value


def _check_lengths(
    prompts: list[list[int]],
    completions: list[list[int]],
    numbers: list[int],
    config: ColdStartData,
    called: Callable[[str], str],
) -> None:
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    too_long = [place for place, length in enumerate(lengths) if length > config.max_length]
    if too_long:
        more = f"; so are {len(too_long) - 1} more, the longest with {max(lengths)}" if len(too_long) > 1 else ""
        raise UsageError(
            f"dataset {config.dataset}, row {numbers[too_long[0]]}: prompt and completion have {lengths[too_long[0]]} "
            f"tokens, more than {called('max_length')} {config.max_length}{more}",
            hint=f"raise {called('max_length')} to {max(lengths)}, or leave the rows out",
        )
