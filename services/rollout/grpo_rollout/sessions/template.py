"""Render what is new behind a recorded turn, and nothing else.

One render of `[user, assistant ⟨marker⟩] + new messages` with the prompt of the next answer. What the template writes
behind the marker's message is the boundary and the new messages as they stand in any conversation: the recorded ids
before it are never tokenised again.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat_form import ChatMessage

Render = Callable[[list[ChatMessage], "list[dict[str, Any]] | None", Mapping[str, Any], bool], str]
"""(messages, tools, chat_template_kwargs, with the prompt of an answer) → text. Raises for what a template refuses."""
Encode = Callable[[str], list[int]]

SAME_END = {"<|eot_id|>": ("<|eom_id|>",)}
"""Tokens that end an assistant's message as well as the one that a template writes, by that one."""
FIRST_USER: ChatMessage = {"role": "user", "content": "x"}


class TemplateError(ValueError):
    """The chat template refuses the messages, or loses what marks the end of an answer."""


def _marker() -> str:
    return f"y{secrets.token_hex(8)}"


@dataclass(frozen=True)
class Suffix:
    """What follows the sampled ids of a turn. `doubled`: the turn ended in a message's opener and another follows."""

    token_ids: list[int]
    doubled: bool = False


class ChatTemplate:
    """The chat template of a server, with what marks the end of an answer in it.

    Args:
        render: renders messages to text.
        encode: tokenises a text that begins at a special token or is a whole prompt, without adding any token.
        special: the special tokens by text.

    `end`: the token that the template writes behind an assistant's message; None for templates whose next message is
    the end. Raises TemplateError when the template loses the marker.
    """

    def __init__(self, render: Render, encode: Encode, special: Mapping[str, int]):
        self.render, self.encode = render, encode
        self.special_ids = frozenset(special.values())
        self._control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self.end = self._find_end()
        texts = {token_id: text for text, token_id in special.items()}
        also = SAME_END.get(texts.get(self.end, ""), ()) if self.end is not None else ()
        self.ends = {self.end, *(special[text] for text in also if text in special)} - {None}
        self.writes_calls = self._writes_calls()
        self.asks_for_all = self._depends_on_prefix()

    def _find_end(self) -> int | None:
        marker = _marker()
        ids = self._behind([FIRST_USER, {"role": "assistant", "content": marker}], marker, None, {}, prompt=False)
        return next((token_id for token_id in ids if token_id in self.special_ids), None)

    def _writes_calls(self) -> bool:
        """Return whether the template writes the arguments of calls, so that a marker can stand in them."""
        marker = _marker()
        function = {"name": "f", "arguments": {}}
        answer = _marked({"tool_calls": [{"id": "abcdefghi", "function": function}]}, marker, in_calls=True)
        try:
            return marker in self._render([FIRST_USER, answer], None, {}, prompt=False)
        except TemplateError:
            return False

    def _depends_on_prefix(self) -> bool:
        """Return whether the suffix depends on tools or the system message, as with Mistral's."""
        new: list[ChatMessage] = [{"role": "user", "content": "x"}]
        tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        bare = self.suffix(None, new, tools=None, system=None, kwargs={}, whole=True)
        for tools, system in (([tool], None), (None, {"role": "system", "content": "s"})):
            try:
                if self.suffix(None, new, tools=tools, system=system, kwargs={}, whole=True) != bare:
                    return True
            except TemplateError:
                continue  # a template without a system message has no way to depend on it
        return False

    def prompt(
        self, messages: Sequence[ChatMessage], tools: list[dict[str, Any]] | None, kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Render a whole prompt. Raises TemplateError."""
        return self.encode(self._render(list(messages), tools, kwargs))

    def suffix(
        self,
        answer: ChatMessage | None,
        new: Sequence[ChatMessage],
        *,
        tools: list[dict[str, Any]] | None,
        system: ChatMessage | None,
        kwargs: Mapping[str, Any],
        whole: bool = False,
    ) -> list[int]:
        """Return the ids of `new` and of the next answer's prompt, as they follow `answer`, behind its end token.

        Raises TemplateError.
        """
        marker = _marker()
        whole = whole or self.asks_for_all
        prefix = [
            *([system] if system and whole else []),
            FIRST_USER,
            _marked(answer, marker, in_calls=self.writes_calls),
        ]
        ids = self._behind([*prefix, *new], marker, tools if whole else None, kwargs, prompt=True)
        first = next((place for place, token_id in enumerate(ids) if self._splits(token_id)), None)
        if first is None:
            raise TemplateError("the chat template writes no special token behind an assistant's message")
        return ids[first + 1 :] if self.end is not None else ids[first:]

    def _splits(self, token_id: int) -> bool:
        return token_id in self.ends if self.end is not None else token_id in self.special_ids

    def joined(self, sampled: Sequence[int], suffix: list[int]) -> Suffix:
        """Return what follows the ids of a turn: the suffix, behind the end token where the turn has none."""
        last = sampled[-1] if sampled else None
        if self.end is not None:
            return Suffix(suffix if last in self.ends else [self.end, *suffix])
        if suffix and last == suffix[0]:
            return Suffix(suffix[1:])
        return Suffix(suffix, doubled=last in self.special_ids)

    def _behind(
        self,
        messages: list[ChatMessage],
        marker: str,
        tools: list[dict[str, Any]] | None,
        kwargs: Mapping[str, Any],
        *,
        prompt: bool,
    ) -> list[int]:
        text = self._render(messages, tools, kwargs, prompt=prompt)
        _, found, behind = text.rpartition(marker)
        if not found:
            raise TemplateError("the chat template leaves out what an assistant said, so that no turn can follow it")
        return self.encode(behind)

    def _render(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]] | None,
        kwargs: Mapping[str, Any],
        *,
        prompt: bool = True,
    ) -> str:
        try:
            return self.render(messages, tools, kwargs, prompt)
        # Catch everything: a template is a program of the model's author.
        except Exception as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error

    def control_tokens(self, texts: Iterable[str]) -> int:
        """Count the special tokens that stand in texts of users and tools, and become real ones in the prompt."""
        return sum(len(self._control.findall(text)) for text in texts)


def _marked(answer: ChatMessage | None, marker: str, *, in_calls: bool) -> ChatMessage:
    """Return an assistant's message that ends in `marker`, with as many calls as `answer` has, and their ids."""
    calls = (answer or {}).get("tool_calls")
    if not calls:
        return {"role": "assistant", "content": marker}
    marked = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["function"]["name"], "arguments": {"x": marker}},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": "" if in_calls else marker, "tool_calls": marked}
