"""Text out of chat messages in the shapes that OpenAI's interfaces and datasets have."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Where servers and trainers put the thought that they have cut out of a message's content."""


def text_of(content: Any) -> str:
    """The text of a message: itself, or its text parts one after the other; images and calls have none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "".join(part for part in parts if isinstance(part, str))


def assistant_text(messages: Sequence[Any]) -> str:
    """What the assistant writes in `messages`, its turns divided by line breaks; what tools answer is left out.

    A parser may have taken a message apart. It is put together as the model wrote it: `<think>…</think>` around the
    thought, the content, and a `<tool_call>` for each call, in the message or in an item of OpenAI's Responses.
    """
    said = [_written(message) for message in messages if isinstance(message, Mapping)]
    return "\n".join(text for text in said if text)


def _written(message: Mapping[str, Any]) -> str:
    if message.get("type") == "function_call":
        return _call(message)
    if message.get("role") != "assistant":
        return ""
    thoughts = (text for name in REASONING if isinstance(text := message.get(name), str) and text)
    thought = next((f"<think>\n{text.strip(chr(10))}\n</think>\n\n" for text in thoughts), "")
    calls = message.get("tool_calls")
    made = map(_call, calls) if isinstance(calls, Sequence) and not isinstance(calls, str) else ()
    return thought + "\n".join(filter(None, (text_of(message.get("content")), *made)))


def _call(call: Any) -> str:
    """A call as Qwen and Hermes models write it. Arguments that are text and no JSON stay text, which is no call."""
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    name, arguments = (inner.get("name"), inner.get("arguments")) if isinstance(inner, Mapping) else (None, None)
    if not isinstance(arguments, str):
        written = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    else:
        written = (arguments if _is_json(arguments) else json.dumps(arguments)) if arguments.strip() else "{}"
    return f'<tool_call>{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {written}}}</tool_call>'


def _is_json(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True


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
