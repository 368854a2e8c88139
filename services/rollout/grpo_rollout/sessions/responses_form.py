"""The items of a Responses request as chat messages.

vLLM does this, too, behind a validation of the whole history that takes most of a turn's time. Said several times over
by items (a thought, a text, calls), an answer is one message; the rules are vLLM's `construct_input_messages`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_proto.server.refusal import Refusal


def chat_messages(items: str | Sequence[Any]) -> list[dict[str, Any]]:
    """Return the messages of a request's `input`. Raises Refusal (400) that names an item which cannot be read."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        kind = (item.get("type") or "message") if isinstance(item, dict) else None
        match kind:
            case "function_call":
                _add_call(messages, item, number)
            case "function_call_output":
                said = {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
                messages.append(said)
            case "reasoning":
                _add(messages, "reasoning", _thought(item, number))
            case "message" if item.get("role") == "assistant":
                _add(messages, "content", _text(item.get("content"), number))
            case "message":
                messages.append(dict(item))
            case _:
                raise _unreadable(number, f"has the type {str(kind)[:100]}")
    return messages


def _add(messages: list[dict[str, Any]], field: str, text: str) -> None:
    """Put a part of an answer into the last message, or into a new one when that is no answer or has such a part."""
    if messages and messages[-1].get("role") == "assistant" and field not in messages[-1]:
        messages[-1][field] = text
    else:
        messages.append({"role": "assistant", field: text})


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], number: int) -> None:
    if item.get("namespace"):
        raise _unreadable(number, "is a call of a tool in a namespace")
    if not item.get("call_id") or not isinstance(item.get("name"), str):
        raise _unreadable(number, "is a call without a call_id or a name")
    function = {"name": item["name"], "arguments": item.get("arguments")}
    if not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant"})
    calls = messages[-1].setdefault("tool_calls", [])
    calls.append({"id": item["call_id"], "type": "function", "function": function})


def _thought(item: Mapping[str, Any], number: int) -> str:
    if item.get("encrypted_content"):
        raise _unreadable(number, "is an encrypted thought")
    return _text(item.get("content") or item.get("summary") or "", number)


def _text(content: Any, number: int) -> str:
    """Return a text, or the one part that it is sent as: joined parts would not equal what was recorded."""
    if isinstance(content, str):
        return content
    if content in (None, []):
        return ""
    if isinstance(content, list) and len(content) > 1:
        raise _unreadable(number, f"has {len(content)} parts; send one")
    part = content[0] if isinstance(content, list) else None
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise _unreadable(number, "has no text")
    text: str = part["text"]
    return text


def _unreadable(number: int, why: str) -> Refusal:
    return Refusal(400, "invalid_messages", f"item {number} of input {why}")
