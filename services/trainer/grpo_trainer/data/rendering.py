"""Prompts become token ids: text as it is, messages by the tokenizer's chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError, meta

from ..errors import UsageError
from .messages import content_parts, content_text, has_images
from .recipes import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = str | list[Message]
Tools = list[dict[str, Any]]
_PROBE = "a text that a template of texts shows"


class Renderer:
    """Renders conversations with one tokenizer.

    A tokenizer without a chat template, as a base model may have, gets the messages' texts, each followed by a line
    break.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", chat_template_kwargs: Mapping[str, Any]):
        self.tokenizer, self.kwargs = tokenizer, dict(chat_template_kwargs)
        self.has_template = tokenizer.chat_template is not None
        self._content = content_parts if self.has_template and self._wants_parts() else content_text

    def token_ids(
        self, prompts: Sequence[Prompt], tools: Sequence[Tools], *, dataset: str, first_row: int
    ) -> list[list[int]]:
        """Token ids of each prompt, ready to be continued by the assistant. `tools[i]` are those of prompt i.

        Raises UsageError for a conversation that the template refuses.
        """
        texts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        for numbers in _with_equal_tools(prompts, tools):
            conversations = [prompts[number] for number in numbers]
            try:
                rendered = self.rendered(conversations, tools[numbers[0]])  # type: ignore[arg-type]
            except Exception:
                for number in numbers:
                    self._check(prompts[number], tools[number], f"dataset {dataset}, row {first_row + number}")
                raise
            for number, text in zip(numbers, rendered, strict=True):
                texts[number] = text
        return self._tokenized(texts, [isinstance(prompt, str) or not self.has_template for prompt in prompts])

    def rendered(self, conversations: Sequence[list[Message]], tools: Tools, *, answered: bool = False) -> list[str]:
        """The text of each conversation, up to where the assistant begins; `answered`: the assistant has ended them.

        Raises anything: a template is a program of the model's author.
        """
        conversations = [
            [message | {"content": self._content_of(message)} for message in messages] for messages in conversations
        ]
        if not self.has_template:
            return ["".join(message["content"] + "\n" for message in messages) for messages in conversations]
        # In one call: what it prepares costs more than to render a prompt.
        return list(
            self.tokenizer.apply_chat_template(
                conversations,
                tokenize=False,
                add_generation_prompt=not answered,
                **self.kwargs | ({"tools": tools} if tools else {}),
            )
        )

    def _content_of(self, message: Message) -> Any:
        return content_parts(message) if self.has_template and has_images(message) else self._content(message)

    def _wants_parts(self) -> bool:
        """Whether the template shows a list of parts, and not a text, which it would leave out silently."""
        as_text: list[Message] = [{"role": "user", "content": _PROBE}]
        as_parts: list[Message] = [{"role": "user", "content": content_parts(as_text[0])}]

        def shown(messages: list[Message]) -> bool:
            try:
                text = self.tokenizer.apply_chat_template(messages, tokenize=False, **self.kwargs)
            except Exception:  # the first row reports it
                return False
            return text.count(_PROBE) == 1 and "'type'" not in text

        return not shown(as_text) and shown(as_parts)

    def _check(self, prompt: Prompt, tools: Tools, where: str) -> None:
        try:
            self.rendered([prompt], tools)  # type: ignore[list-item]
        except Exception as error:
            raise UsageError(
                f"{where}: the tokenizer's chat template refuses the messages: {error}",
                hint="change data.system, data.chat_template_kwargs, model.chat_template or the roles in the dataset",
            ) from error

    def _tokenized(self, texts: Sequence[str], is_plain: Sequence[bool]) -> list[list[int]]:
        """Plain text gets the tokenizer's own special tokens; a chat template has written them already."""
        token_ids: list[list[int]] = [[] for _ in texts]
        for plain in (True, False):
            numbers = [number for number, flag in enumerate(is_plain) if flag is plain]
            if numbers:
                # In one call: a fast tokenizer spreads a list over the cores.
                batch = self.tokenizer(
                    [texts[number] for number in numbers],
                    add_special_tokens=plain,
                    return_attention_mask=False,
                    verbose=False,
                )
                for number, ids in zip(numbers, batch["input_ids"], strict=True):
                    token_ids[number] = ids
        return token_ids


def unread_settings(tokenizer: "PreTrainedTokenizerBase", given: Mapping[str, Any]) -> list[str]:
    """A sentence for each of `data.chat_template_kwargs` that the chat template does not read. What only says that a
    model is not to think is what a template without thoughts does anyway."""
    template = tokenizer.chat_template
    if not isinstance(template, str):
        return []
    try:
        reads = meta.find_undeclared_variables(Environment().parse(template))  # noqa: S701 - nothing is rendered
    except TemplateError:  # a tag of transformers' own, such as `generation`
        return []
    unread = sorted(name for name, value in given.items() if name not in reads and value is not False)
    return [f"data.chat_template_kwargs has {name}, which the chat template does not read" for name in unread]


def _with_equal_tools(prompts: Sequence[Prompt], tools: Sequence[Tools]) -> list[list[int]]:
    """The numbers of the prompts that are messages, together where their tools are equal."""
    by_tools: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            by_tools.setdefault(json.dumps(tools[number]) if tools[number] else "", []).append(number)
    return list(by_tools.values())
