"""Text out of chat messages in the shapes that OpenAI's interfaces and datasets have."""

from collections.abc import Mapping, Sequence
from typing import Any


def text_of(content: Any) -> str:
    """The text of a message: itself, or its text parts one after the other; images and calls have none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "".join(part for part in parts if isinstance(part, str))


def assistant_text(messages: Sequence[Any]) -> str:
    """What the assistant says in `messages`, its turns divided by line breaks. Tool calls and their output are left."""
    said = [
        text_of(message.get("content"))
        for message in messages
        if isinstance(message, Mapping) and message.get("role") == "assistant"
    ]
    return "\n".join(text for text in said if text)


def plain_prompt(prompt: Any) -> str | list[dict[str, str]] | None:
    """A prompt as `ScoreSample.prompt` has it: text, or messages of a role and a text."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return None
    return [
        {"role": str(message["role"]), "content": text_of(message.get("content"))}
        for message in prompt
        if isinstance(message, Mapping) and "role" in message
    ]
