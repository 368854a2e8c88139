"""What a request asks for, whichever API it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_proto.server.refusal import Refusal

from .chat_form import ChatMessage
from .forest import Asked, Turn


def checked_limit(body: Mapping[str, Any], name: str) -> int | None:
    """Return the limit of tokens in a body. Raises Refusal (400): the engine stands still for ever on one of 5.0."""
    limit = body.get(name)
    if limit is None:
        return None
    if type(limit) is not int or limit < 1:
        raise Refusal(400, "invalid_request", f"{name} is no number of at least 1")
    return limit


def checked_tools(body: Mapping[str, Any], kinds: tuple[str | None, ...], others: str) -> list[Any]:
    """Return the tools of a body. Raises Refusal (400) for `others`, whose type is none of `kinds`."""
    tools = body.get("tools") or []
    if not isinstance(tools, list) or any(not isinstance(one, dict) or one.get("type") not in kinds for one in tools):
        raise Refusal(400, "unsupported", f"{others} are not supported in a session")
    return tools


@dataclass(frozen=True)
class Wanted:
    """What a request asks for: a chat, or `token_ids` alone. `images`: by name, the base64 of those of `messages`."""

    messages: list[ChatMessage] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    token_ids: list[int] | None = None
    parent: Turn | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    label: str = ""

    def history(self) -> list[ChatMessage]:
        """Return all messages, those up to `parent` too."""
        before = self.parent.answer.messages() if self.parent is not None and self.parent.answer is not None else []
        return [*before, *self.messages]

    def position(self, new: Sequence[ChatMessage]) -> int:
        """Return the place of the first of the new messages in the request."""
        return len(self.messages) - len(new)

    def system(self) -> ChatMessage | None:
        first = self.history()[0]
        return first if first["role"] == "system" else None

    def stop_in(self, text: str, stop_reason: int | str | None, *, before_last: str) -> tuple[str, str]:
        """Return an answer as OpenAI's and Anthropic's APIs give it, and the stop string of the program that ended it,
        empty without one: `text` up to that string. The ids of the turn, and the text that rewards read, keep it.

        `before_last`: the text before the last token, in which the stop string was completed.
        """
        if isinstance(stop_reason, str):
            stop = stop_reason if stop_reason in self.stop else ""
        else:  # the id of a special token
            stop = next((one for one in self.stop if stop_reason is not None and text.endswith(one)), "")
        if not stop:
            return text, ""
        place = text.find(stop, max(0, len(before_last) - len(stop) + 1))
        if place < 0:  # several tokens came at once
            place = text.rfind(stop)
        return (text[:place], stop) if place >= 0 else (text, "")

    @property
    def asked(self) -> Asked:
        """What a retry has in common with the request it repeats, beside its prompt."""
        return self.max_tokens, self.stop
