"""Rows become prompts: messages or text, and the token ids that the servers and the trainer both use.

Which prompts are messages and which are text:
- what a recipe of ours or a `prompt_template` makes is a user's message, with `system` before it if there is one;
- with recipe `none`, or a user's own, a row's list of messages stays messages, and its text stays text, unless `system`
  is given: then the text is a user's message, too.

How they become token ids: text as it is, with the special tokens that the tokenizer adds by itself. Messages by the
tokenizer's chat template, up to where the assistant begins; it gets all that a message holds, and the tools of the
row's column `tools`.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import UsageError, storage_error_class
from ..extension import file_of, named
from .columns import ColumnCheck
from .images import ImageColumn, RowImages, all_files
from .messages import check_sendable, messages_of_text, read_message, read_tools
from .recipes import RECIPES, Recipe, converted, with_system
from .recipes.own import PROMPT_COLUMN, own_recipe
from .rendering import Prompt, Renderer, Tools
from .same_prompt import SamePromptCheck
from .values import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..config.cold_start import ColdStartData
    from ..config.data import DataConfig


NO_IMAGES = ImageColumn()


@dataclass(frozen=True)
class PromptMaker:
    """How the rows of one dataset become prompts. The fields are those of a `data` section, files replaced by texts."""

    recipe: str = "none"
    recipe_params: Mapping[str, Any] = field(default_factory=dict)
    prompt_column: str = "prompt"
    prompt_template: str | None = None
    system: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    images: ImageColumn = NO_IMAGES
    without_prompt: bool = False
    """Rows of episodes whose environments say what is asked: of a prompt they have `system` alone."""

    @classmethod
    def of(cls, config: "DataConfig | ColdStartData") -> Self:
        """Raises UsageError for an unknown recipe or parameter, and for a file that is not there or no text."""
        named(config.recipe, {"none": None, **RECIPES}, setting="data.recipe")
        own = file_of(config.recipe) is not None
        if own:
            own_recipe(config.recipe, config.recipe_params)
        elif config.recipe_params:
            raise UsageError(
                f"data.recipe_params: the recipe {config.recipe} has no parameters",
                hint="leave them out, or name a recipe of your own, FILE.py:NAME",
            )
        if own and config.prompt_template is not None:
            raise UsageError(
                f"data.prompt_template has no place in the recipe {config.recipe}, which makes the whole prompt",
                hint="leave one of the two out",
            )
        return cls(
            recipe=config.recipe,
            recipe_params=config.recipe_params,
            prompt_column=PROMPT_COLUMN if own else config.prompt_column,
            prompt_template=text_or_file(config.prompt_template, "data.prompt_template"),
            system=text_or_file(config.system, "data.system"),
            chat_template_kwargs=config.chat_template_kwargs,
        )

    def rows(self, rows: Iterable[Row], *, dataset: str) -> Iterable[Row]:
        """The rows that prompts are made of: with a user's own recipe, what it makes of them."""
        if file_of(self.recipe) is None:
            return rows
        return converted(rows, self.recipe, self.recipe_params, dataset=dataset)

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

    def column_check(self, dataset: str) -> ColumnCheck:
        """The check that rows have the columns that their prompts are made of."""
        recipe = self.filled_recipe
        if self.without_prompt:
            return ColumnCheck([], dataset=dataset, needed_by="an episode")
        if recipe is None:
            return ColumnCheck([self.prompt_column], dataset=dataset, needed_by="data.prompt_column")
        needed_by = "data.prompt_template" if self.prompt_template is not None else f"recipe {self.recipe}"
        return ColumnCheck([], dataset=dataset, needed_by=needed_by, template=recipe.template)

    def same_prompt_check(self, dataset: str) -> SamePromptCheck:
        """The check that a template does not make one prompt of all rows."""
        recipe = self.filled_recipe
        return SamePromptCheck(dataset, recipe.question if recipe is not None else None)

    def prompts_of(self, rows: Sequence[Mapping[str, Any]], *, dataset: str, first_row: int = 1) -> list[Prompt]:
        """One prompt for each of some rows, which have the columns. Raises UsageError; `first_row` counts from 1."""
        if self.without_prompt:
            self._check_no_prompts(rows, dataset=dataset, first_row=first_row)
            return [with_system(self.system, []) or "" for _ in rows]
        recipe = self.filled_recipe
        if recipe is not None:
            return [
                _filled(recipe, row, f"dataset {dataset}, row {number}: data.prompt_template")
                for number, row in enumerate(rows, start=first_row)
            ]
        name = self.prompt_column if file_of(self.recipe) is None else f"the prompt of data.recipe {self.recipe}"
        return [
            self._as_given(row[self.prompt_column], f"dataset {dataset}, row {number}: {name}")
            for number, row in enumerate(rows, start=first_row)
        ]

    def _as_given(self, value: Any, where: str) -> Prompt:
        value = messages_of_text(value) or value
        if isinstance(value, str):
            return with_system(self.system, [{"role": "user", "content": value}]) if self.system else value
        messages = [read_message(item, where) for item in value] if isinstance(value, list) else []
        for message in messages:
            check_sendable(message, where)
            self.images.check_seen(message, where)
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
        return with_system(self.system, messages)

    def with_images(
        self, rows: Sequence[Row], prompts: Sequence[Prompt], *, dataset: str, first_row: int = 1
    ) -> tuple[list[Row], list[Prompt], list[RowImages]]:
        """The rows without the column of their images, the prompts with a place for each, and the images.

        Raises UsageError; `first_row` counts from 1.
        """
        shown, placed, images = [], [], []
        for number, (row, prompt) in enumerate(zip(rows, prompts, strict=True), start=first_row):
            where = f"dataset {dataset}, row {number}"
            left, given, column = self.images.taken(row, where)
            prompt, found = self.images.placed(prompt, given, where)
            # Rewards may read paths; a picture is not sent to them.
            row = row if all_files(found) else left
            if found and isinstance(row.get(self.prompt_column), list):
                row = {**row, self.prompt_column: prompt}  # without what its parts are images of
            shown.append(row)
            placed.append(prompt)
            images.append(RowImages(found, column))
        return shown, placed, images

    def check_images(
        self, token_ids: Sequence[list[int]], images: Sequence[RowImages], *, dataset: str, first_row: int = 1
    ) -> None:
        """Raises UsageError unless the model's token stands in each prompt once for each of its images."""
        if self.without_prompt:
            return
        for number, (ids, of_row) in enumerate(zip(token_ids, images, strict=True), start=first_row):
            self.images.check_rendered(ids, of_row.sources, f"dataset {dataset}, row {number}")

    def _check_no_prompts(self, rows: Sequence[Mapping[str, Any]], *, dataset: str, first_row: int) -> None:
        for number, row in enumerate(rows, start=first_row):
            if row.get(self.prompt_column) is not None:
                raise UsageError(
                    f"dataset {dataset}, row {number} has a {self.prompt_column}, and row 1 has none",
                    hint="give all rows one, or none: an episode without begins with what its environment says",
                )

    def tools_of(self, rows: Sequence[Mapping[str, Any]], *, dataset: str, first_row: int = 1) -> list[Tools]:
        """The tools of each row, which a chat template shows. Raises UsageError."""
        return [read_tools(row, f"dataset {dataset}, row {number}") for number, row in enumerate(rows, start=first_row)]

    def replaces_system(self, row: Mapping[str, Any]) -> bool:
        """Whether `data.system` stands in place of a system message that the row's prompt has."""
        given = row.get(self.prompt_column)
        first = next(iter(messages_of_text(given) or given), None) if isinstance(given, str | list) else None
        as_given = self.recipe == "none" and self.prompt_template is None
        return as_given and bool(self.system) and isinstance(first, dict) and first.get("role") == "system"

    def token_ids(
        self,
        prompts: Sequence[Prompt],
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tools: Sequence[Tools],
        dataset: str,
        first_row: int = 1,
    ) -> list[list[int]]:
        """Token ids of each prompt, ready to be continued by the assistant. Raises UsageError."""
        if self.without_prompt:
            return [[] for _ in prompts]
        renderer = Renderer(tokenizer, self.chat_template_kwargs)
        return renderer.token_ids(prompts, tools, dataset=dataset, first_row=first_row)


def _filled(recipe: Recipe, row: Mapping[str, Any], where: str) -> Prompt:
    try:
        return recipe.messages(row)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def text_or_file(value: str | None, setting: str) -> str | None:
    """A setting that is a text, or the path of a file that holds it (without its final line break)."""
    text = file_text(value, setting)
    return value if text is None else text.removesuffix("\n")


def file_text(value: str | None, setting: str) -> str | None:
    """The text of the file that a setting names; None for a text. Raises UsageError for a file that is not there."""
    if value is None or "\n" in value or len(value) > 1000:
        return None
    path = Path(value).expanduser()
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{setting}: {path} cannot be read as text: {error}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # a text of one line, longer than any file's name
            raise storage_error_class(error)(f"{setting}: {path} cannot be read: {error.strerror}") from error
    if " " not in value and path.suffix in (".txt", ".md", ".jinja", ".prompt"):
        raise UsageError(f"{setting}: there is no file {value}", hint="give an existing file, or the text itself")
    return None
