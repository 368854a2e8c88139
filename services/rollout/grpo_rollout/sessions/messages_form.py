"""The messages of an Anthropic request as chat messages.

vLLM does this, too, behind two validations of the whole history. The rules are its `to_chat_completion_request`'s,
except that what it drops without a word is refused here. Results of tools become messages of their own in front of
their message's text and images, thoughts and texts are joined, and the block in which Claude Code names its version is
left out: it is another one in each request.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_proto.server.refusal import Refusal

ROLES = ("user", "assistant", "system")
BILLING = "x-anthropic-billing-header"


def chat_messages(body: Mapping[str, Any], *, merge_system: bool) -> list[dict[str, Any]]:
    """Return what the `system` and `messages` of a request say.

    `merge_system`: the chat template takes system messages at the beginning alone; later ones join the first.
    Raises Refusal (400) that names the message which cannot be read without losing a part of it.
    """
    sent = body.get("messages")
    if not isinstance(sent, list) or not sent:
        raise Refusal(400, "invalid_messages", "messages is no list, or an empty one")
    first = body.get("system")
    system = [first if isinstance(first, str) else _system(first, "system")]
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(sent):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise Refusal(400, "invalid_messages", f"messages.{number}.role is none of {', '.join(ROLES)}")
        content = message.get("content")
        if role == "system":
            text = _system(content, f"message {number}")
            if merge_system:
                system.append(text)
            elif text:
                messages.append({"role": "system", "content": text})
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        else:
            messages += _said(role, content, number)
    text = "".join(system)
    return [{"role": "system", "content": text}, *messages] if text else messages


def _system(content: Any, name: str) -> str:
    if content is None or isinstance(content, str):
        return "" if content is None or content.startswith(BILLING) else content
    texts = []
    for block in _blocks(content, name):
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise Refusal(400, "invalid_messages", f"{name} holds more than text")
        texts.append(block["text"])
    return "".join(text for text in texts if not text.startswith(BILLING))


def _said(role: str, content: Any, number: int) -> Iterator[dict[str, Any]]:
    """Yield the results of tools that a message holds, and then what it says itself."""
    parts, thoughts, calls = list[Mapping[str, Any]](), [], []
    for block in _blocks(content, f"message {number}"):
        match block.get("type"), role:
            case "text", _:
                parts.append({"type": "text", "text": _text(block, "text", number)})
            case "image", "user":
                parts.append(block)
            case "thinking", "assistant":
                thoughts.append(_text(block, "thinking", number))
            case "tool_use", "assistant":
                calls.append(_call(block, number))
            case "tool_result", "user":
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block, number)}
            case "tool_result", _:
                raise Refusal(400, "invalid_messages", f"message {number} holds a tool's result and is not a user's")
            case kind, _:
                raise _odd_block(number, kind)
    message: dict[str, Any] = {"role": role, "content": _joined(parts, "")}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if role == "assistant" or message["content"]:
        yield message


def _joined(parts: list[Mapping[str, Any]], between: str) -> str | list[Mapping[str, Any]]:
    """Return the text of parts, with `between` in between, or parts where one is an image."""
    if not any(part["type"] == "image" for part in parts):
        return between.join(part["text"] for part in parts)
    joined: list[Mapping[str, Any]] = []
    for part in parts:
        if joined and joined[-1]["type"] == part["type"] == "text":
            part = {"type": "text", "text": between.join((joined.pop()["text"], part["text"]))}
        joined.append(part)
    return joined


def _result(block: Mapping[str, Any], number: int) -> str | list[Mapping[str, Any]]:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = list(_blocks(content, f"message {number}"))
    for part in parts:
        if part.get("type") == "text":
            _text(part, "text", number)
        elif part.get("type") != "image":
            raise _odd_block(number, part.get("type"))
    return _joined(parts, "\n")


def _call(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    given = block.get("input") or {}
    if not isinstance(given, dict):
        raise Refusal(400, "invalid_messages", f"message {number} holds a call whose input is no object")
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": given}}


def _text(block: Mapping[str, Any], field: str, number: int) -> str:
    text = block.get(field)
    if not isinstance(text, str):
        raise Refusal(400, "invalid_messages", f"message {number} holds a block without {field}")
    return text


def _blocks(content: Any, name: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(content, list):
        raise Refusal(400, "invalid_messages", f"{name} has neither a text nor a list of blocks")
    for block in content:
        yield block if isinstance(block, dict) else {}


def _odd_block(number: int, kind: Any) -> Refusal:
    return Refusal(
        400, "invalid_messages", f"message {number} holds a block of type {str(kind)[:100]}; send text and images"
    )
