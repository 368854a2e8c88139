"""Rows become prompts: messages or text, and the token ids that the servers and the trainer both use.

Which prompts are messages and which are text:
- what a recipe of ours or a `prompt_template` makes is a user's message, with `system` before it if there is one;
- with recipe `none`, or a user's own, a row's list of messages stays messages, and its text stays text, unless `system`
  is given: then the text is a user's message, too.

How they become token ids: text as it is, with the special tokens that the tokenizer adds by itself. Messages by the
tokenizer's chat template, up to where the assistant begins. A tokenizer without a chat template, as a base model may
have, gets the messages' texts, each followed by a line break.
"""

import difflib
import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jinja2

from ..errors import UsageError, storage_error_class
from ..extension import file_of, named
from .recipes import RECIPES, Message, Recipe, converted, with_system
from .recipes.own import PROMPT_COLUMN
from .values import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..config.cold_start import ColdStartData
    from ..config.data import DataConfig

Prompt = str | list[Message]


@dataclass(frozen=True)
class PromptMaker:
    """How the rows of one dataset become prompts. The fields are those of a `data` section, files replaced by texts."""

    recipe: str = "none"
    prompt_column: str = "prompt"
    prompt_template: str | None = None
    system: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: "DataConfig | ColdStartData") -> Self:
        """Raises UsageError for an unknown recipe, and for a file that is not there or no text."""
        named(config.recipe, {"none": None, **RECIPES}, setting="data.recipe")
        own = file_of(config.recipe) is not None
        if own and config.prompt_template is not None:
            raise UsageError(
                f"data.prompt_template has no place in the recipe {config.recipe}, which makes the whole prompt",
                hint="leave one of the two out",
            )
        return cls(
            recipe=config.recipe,
            prompt_column=PROMPT_COLUMN if own else config.prompt_column,
            prompt_template=text_or_file(config.prompt_template, "prompt_template"),
            system=text_or_file(config.system, "system"),
            chat_template_kwargs=config.chat_template_kwargs,
        )

    def rows(self, rows: Iterable[Row], *, dataset: str) -> Iterable[Row]:
        """The rows that prompts are made of: with a user's own recipe, what it makes of them."""
        return rows if file_of(self.recipe) is None else converted(rows, self.recipe, dataset=dataset)

    @property
    def filled_recipe(self) -> Recipe | None:
        """The recipe, with the template and the system prompt of the run in place of its own; None for a row's own."""
        base = RECIPES.get(self.recipe)
        if base is None and self.prompt_template is None:
            return None
        return Recipe(
            question=self.prompt_template if self.prompt_template is not None else base.question if base else "",
            system=self.system if self.system is not None else base.system if base else None,
        )

    def prompts(self, rows: Sequence[Mapping[str, Any]], *, dataset: str) -> list[Prompt]:
        """One prompt for each of all rows. Raises UsageError for a missing column, naming the nearest, or the row."""
        columns = self.column_check(dataset)
        columns.add(rows, first_row=1)
        columns.finish()
        return self.prompts_of(rows, dataset=dataset)

    def column_check(self, dataset: str) -> "ColumnCheck":
        """The check that rows have the columns that their prompts are made of."""
        recipe = self.filled_recipe
        if recipe is None:
            return ColumnCheck([self.prompt_column], dataset=dataset, needed_by="data.prompt_column")
        needed_by = "data.prompt_template" if self.prompt_template is not None else f"recipe {self.recipe}"
        return ColumnCheck(recipe.columns, dataset=dataset, needed_by=needed_by)

    def prompts_of(self, rows: Sequence[Mapping[str, Any]], *, dataset: str, first_row: int = 1) -> list[Prompt]:
        """One prompt for each of some rows, which have the columns. Raises UsageError; `first_row` counts from 1."""
        recipe = self.filled_recipe
        if recipe is not None:
            return [recipe.messages(row) for row in rows]
        name = self.prompt_column if file_of(self.recipe) is None else f"the prompt of data.recipe {self.recipe}"
        return [
            _prompt_as_given(row[self.prompt_column], self.system, f"dataset {dataset}, row {number}: {name}")
            for number, row in enumerate(rows, start=first_row)
        ]

    def token_ids(
        self, prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase", *, dataset: str, first_row: int = 1
    ) -> list[list[int]]:
        """Token ids of each prompt, ready to be continued by the assistant. Raises UsageError."""
        numbers = [number for number, prompt in enumerate(prompts) if not isinstance(prompt, str)]
        conversations = [prompt for prompt in prompts if not isinstance(prompt, str)]
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        try:
            rendered = self._rendered(conversations, tokenizer)
        except jinja2.TemplateError:
            for number, conversation in zip(numbers, conversations, strict=True):
                self._check_rendered(conversation, tokenizer, f"dataset {dataset}, row {first_row + number}")
            raise
        for number, text in zip(numbers, rendered, strict=True):
            texts[number] = text
        has_template = tokenizer.chat_template is not None
        return _tokenized(texts, tokenizer, [isinstance(prompt, str) or not has_template for prompt in prompts])

    def _rendered(self, conversations: list[list[Message]], tokenizer: "PreTrainedTokenizerBase") -> list[str]:
        if tokenizer.chat_template is None:
            return ["".join(message["content"] + "\n" for message in messages) for messages in conversations]
        if not conversations:
            return []
        # In one call: what it prepares costs more than to render a prompt.
        return list(
            tokenizer.apply_chat_template(
                conversations, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
            )
        )

    def _check_rendered(self, messages: list[Message], tokenizer: "PreTrainedTokenizerBase", where: str) -> None:
        try:
            self._rendered([messages], tokenizer)
        except jinja2.TemplateError as error:
            raise UsageError(
                f"{where}: the tokenizer's chat template refuses the messages: {error}",
                hint="change data.system, data.chat_template_kwargs or the roles in the dataset",
            ) from error


def _tokenized(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", is_plain: Sequence[bool]) -> list[list[int]]:
    """Plain text gets the tokenizer's own special tokens; a chat template has written them already."""
    token_ids: list[list[int]] = [[] for _ in texts]
    for plain in (True, False):
        numbers = [number for number, flag in enumerate(is_plain) if flag is plain]
        if numbers:
            # In one call: a fast tokenizer spreads a list over the cores.
            batch = tokenizer(
                [texts[number] for number in numbers],
                add_special_tokens=plain,
                return_attention_mask=False,
                verbose=False,
            )
            for number, ids in zip(numbers, batch["input_ids"], strict=True):
                token_ids[number] = ids
    return token_ids


def _prompt_as_given(value: Any, system: str | None, where: str) -> Prompt:
    if isinstance(value, str):
        return with_system(system, [{"role": "user", "content": value}]) if system else value
    messages = [_message(item, where) for item in value] if isinstance(value, list) else []
    if not messages:
        raise UsageError(
            f"{where} is neither text nor a list of messages",
            hint='messages are written as [{"role": "user", "content": "…"}]',
        )
    if messages[-1]["role"] == "assistant":
        raise UsageError(
            f"{where} ends with the assistant's message, so the answer would be part of the prompt",
            hint="end the prompt with the user's message, or name another data.prompt_column",
        )
    return with_system(system, messages)


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, Mapping) or not all(isinstance(item.get(key), str) for key in ("role", "content")):
        raise UsageError(
            f"{where} holds a message without a text `role` and a text `content`: {str(item)[:80]}",
            hint='messages are written as {"role": "user", "content": "…"}',
        )
    return {"role": item["role"], "content": item["content"]}


class ColumnCheck:
    """Every row has every needed column, with a value. `finish` knows after all rows whether a column is missing."""

    def __init__(self, needed: Sequence[str], *, dataset: str, needed_by: str):
        self.needed, self.dataset, self.needed_by = needed, dataset, needed_by
        self.known: dict[str, None] = {}
        self.row_without: dict[str, int] = {}
        """The first row without a value in a column, from 1."""

    @property
    def failed(self) -> bool:
        return bool(self.row_without)

    def add(self, rows: Sequence[Mapping[str, Any]], *, first_row: int) -> None:
        for number, row in enumerate(rows, start=first_row):
            self.known.update(dict.fromkeys(row))
            for name in self.needed:
                if row.get(name) is None:
                    self.row_without.setdefault(name, number)

    def finish(self) -> None:
        """Raise UsageError for the first needed column that fails, naming the nearest column, or the row."""
        for name in self.needed:
            if name not in self.known:
                close = difflib.get_close_matches(name, self.known, n=2, cutoff=0.5)
                nearest = f"; the nearest: {', '.join(close)}" if close else ""
                raise UsageError(
                    f"dataset {self.dataset} has no column {name}, which {self.needed_by} needs{nearest}",
                    hint=f"its columns are {', '.join(self.known) or 'none'}",
                )
            if name in self.row_without:
                raise UsageError(
                    f"dataset {self.dataset}, row {self.row_without[name]} has no value in column {name}, which "
                    f"{self.needed_by} needs",
                    hint="fill it in or leave the row out",
                )


def check_columns(rows: Sequence[Mapping[str, Any]], needed: Sequence[str], *, dataset: str, needed_by: str) -> None:
    """Check all rows at once; see `ColumnCheck`."""
    check = ColumnCheck(needed, dataset=dataset, needed_by=needed_by)
    check.add(rows, first_row=1)
    check.finish()


def text_or_file(value: str | None, key: str) -> str | None:
    """A setting that is a text, or the path of a file that holds it (without its final line break)."""
    if value is None or "\n" in value or len(value) > 1000:
        return value
    path = Path(value).expanduser()
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"data.{key}: {path} cannot be read as text: {error}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a text of one line, longer than any file's name
            raise storage_error_class(error)(f"data.{key}: {path} cannot be read: {error.strerror}") from error
    if " " not in value and path.suffix in (".txt", ".md", ".jinja", ".prompt"):
        raise UsageError(f"data.{key}: there is no file {value}", hint="give an existing file, or the text itself")
    return value
