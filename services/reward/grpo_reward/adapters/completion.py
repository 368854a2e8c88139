"""One completion in the shapes that datasets and trainers give it: a text, or the messages of a conversation."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .text import REASONING, assistant_text

A_COMPLETION = "a completion is a text or a list of messages with role and content, one of them the assistant's"
BESIDE_CONTENT = {"tool_calls", *REASONING}
"""With one of these a message of the assistant may have no content."""


def completion_text(completion: Any, where: str) -> str:
    """What the assistant writes. Raises TypeError for another shape: read as messages it says nothing, and scores 0."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, bytes | Mapping) or not isinstance(completion, Iterable):
        raise TypeError(f"{where} is {value_and_type(completion)}: {A_COMPLETION}")
    messages = list(completion)
    for position, message in enumerate(messages):
        if not _is_message(message):
            raise TypeError(f"{where}[{position}] is {value_and_type(message)}: {A_COMPLETION}")
    if not any(message["role"] == "assistant" for message in messages):
        raise TypeError(f"{where} has no message of the assistant: {A_COMPLETION}")
    return assistant_text(messages)


def _is_message(message: Any) -> bool:
    """Whether it has a role and, if the assistant says it, content that `assistant_text` can read."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    if message["role"] != "assistant":
        return True
    content = message.get("content")
    if content is None:
        return "content" in message or not BESIDE_CONTENT.isdisjoint(message)
    return isinstance(content, str) or (
        isinstance(content, Sequence) and not isinstance(content, bytes) and all(map(_is_part, content))
    )


def _is_part(part: Any) -> bool:
    """Whether it is a part of a content: a text that has one, or something else that says what it is, as images do."""
    if not isinstance(part, Mapping):
        return False
    return isinstance(part.get("text"), str) or part.get("type") not in (None, "text", "output_text")


def value_and_type(value: Any) -> str:
    return f"{reprlib.repr(value)} of type {type(value).__name__}"
