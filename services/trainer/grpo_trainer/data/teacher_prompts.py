"""What a teacher reads in place of the policy's prompts: the same conversation with another last message of the user,
as one that shows the solution.

Made of a row when its group is scored, because they are few; all of them are made once before the first step, so that
a row of which none can be made is found then.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..config.run_config import RunConfig
from ..config.teacher import TeacherConfig, teacher_setting
from ..errors import UsageError
from .columns import ColumnCheck
from .images import ImageColumn
from .messages import has_images, messages_of_text, read_message, read_tools
from .prompt_row import PromptRow
from .prompts import text_or_file
from .recipes.template import Template
from .rendering import Prompt, Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS_AT_ONCE = 256


class TeacherPrompts:
    """Those of one dataset's teacher."""

    def __init__(
        self,
        config: TeacherConfig,
        renderer: Renderer,
        *,
        dataset: str,
        setting: str,
        image_token_id: int | None = None,
    ):
        """`setting` is the teacher's section in the run file; `image_token_id` the model's, None for one that sees no
        images. Raises UsageError for a template that is not there."""
        self.of_itself = config.of_itself
        self.longest = 0
        """Tokens of the longest, once `make_all` has made them."""
        text = text_or_file(config.prompt_template, f"{setting}.prompt_template")
        self._template = None if text is None else Template.of(text)
        self._column, self._renderer = config.prompt_column, renderer
        self._named = f"{setting}.{'prompt_column' if text is None else 'prompt_template'}"
        self._dataset, self._image_token_id = dataset or "of the run", image_token_id

    @property
    def named(self) -> str:
        """The setting that makes them."""
        return self._named

    @classmethod
    def of_run(
        cls, config: RunConfig, tokenizer: "PreTrainedTokenizerBase", *, image_token_id: int | None
    ) -> "dict[str, TeacherPrompts]":
        """Those of each dataset whose teacher does not read the policy's prompts."""
        found = {}
        for dataset, teacher in config.teachers.items():
            if teacher.has_own_prompt:
                data = config.data.of_dataset(dataset) if dataset else config.data
                renderer = Renderer(tokenizer, data.chat_template_kwargs)
                setting = teacher_setting(dataset, config)
                found[dataset] = cls(teacher, renderer, dataset=dataset, setting=setting, image_token_id=image_token_id)
        return found

    def make_all(self, rows: Sequence[PromptRow]) -> None:
        """Make the prompts of all rows of the dataset. Raises UsageError for a column that the dataset lacks, and for a
        row of which no prompt can be made."""
        needed = [self._column] if self._column else []
        check = ColumnCheck(needed, dataset=self._dataset, needed_by=self._named, template=self._template)
        parts = range(0, len(rows), ROWS_AT_ONCE)
        for row in rows:  # one by one: rows may be left out between them
            check.add([row.columns], first_row=row.index + 1)
        check.finish()
        self.longest = max(len(ids) for first in parts for ids in self.token_ids(rows[first : first + ROWS_AT_ONCE]))

    def check_context(self, context: int | None, *, max_completion_length: int) -> None:
        """Raises UsageError where the policy, as its own teacher, would read more than its `context` in tokens; None is
        unknown."""
        needed = self.longest + max_completion_length
        if self.of_itself and context is not None and needed > context:
            raise UsageError(
                f"{self._named} makes a prompt of {self.longest} tokens (dataset {self._dataset}), with a completion "
                f"{needed}, and the model's context ends at {context}",
                hint="shorten what the teacher reads, leave out the longest rows, or lower "
                "rollout.max_completion_length",
            )

    def token_ids(self, rows: Sequence[PromptRow]) -> list[list[int]]:
        """Token ids of the prompts of rows that follow each other, ready to be continued by the assistant. Raises
        UsageError."""
        prompts = [self._prompt(row) for row in rows]
        tools = [read_tools(row.columns, self._where(row)) for row in rows]
        shown = f"{self._dataset}, {self._named}"
        found = self._renderer.token_ids(prompts, tools, dataset=shown, first_row=rows[0].index + 1)
        for row, token_ids in zip(rows, found, strict=True):
            ImageColumn(token_id=self._image_token_id).check_rendered(token_ids, row.images, self._where(row))
        return found

    def _prompt(self, row: PromptRow) -> Prompt:
        if self._template is not None:
            given: Any = self._filled(self._template, row)
        else:
            given = row.columns[self._column or ""]
            given = messages_of_text(given) or given
        if isinstance(given, list) and given:
            return [read_message(message, self._where(row)) for message in given]
        if not isinstance(given, str):
            raise UsageError(
                f"{self._where(row)} is neither text nor a list of messages, but {str(given)[:80]}",
                hint="prompt_template writes anything as text: {column}",
            )
        if not given.strip():
            raise UsageError(f"{self._where(row)} is empty", hint="fill it in or leave the row out")
        return given if isinstance(row.prompt, str) else _with_last_message(row.prompt, given)

    def _filled(self, template: Template, row: PromptRow) -> str:
        try:
            return template.filled(row.columns)
        except ValueError as error:
            raise UsageError(f"{self._where(row)}: {error}") from error

    def _where(self, row: PromptRow) -> str:
        return f"dataset {self._dataset}, row {row.index + 1}: {self._named}"


def _with_last_message(messages: Sequence[dict[str, Any]], content: str) -> list[dict[str, Any]]:
    """`messages` with `content` as the last message of the user, behind its images; behind them where there is none."""
    of_user = [number for number, message in enumerate(messages) if message["role"] == "user"]
    if not of_user:
        return [*messages, {"role": "user", "content": content}]
    last = of_user[-1]
    shown: Any = content
    if has_images(messages[last]):
        images = [part for part in messages[last]["content"] if part["type"] == "image"]
        shown = [*images, {"type": "text", "text": content}]
    return [*messages[:last], messages[last] | {"content": shown}, *messages[last + 1 :]]
