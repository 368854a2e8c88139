"""Chat messages of a row: as a chat template reads them, and as they are sent to a reward server.

A message keeps every field that it has (`tool_calls`, `name`, `reasoning_content`, …): the template may read it.
Fields that are null are left out: Arrow fills up the messages of a dataset with them.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from grpo_proto import Message as WireMessage
from grpo_proto.nulls import without_nulls
from grpo_proto.tool_arguments import parsed_arguments

from ..errors import UsageError
from .recipes import Message

TOOLS_COLUMN = "tools"
_MESSAGE_HINT = 'messages are written as {"role": "user", "content": "…"}'
_CALL_HINT = 'calls are written as {"type": "function", "function": {"name": "…", "arguments": {…}}}'
_IMAGES = ("image", "image_url", "url", "path", "base64")
"""The keys by which a part says what it is an image of."""
_TOOLS_HINT = (
    'tools are a list of {"type": "function", "function": {"name": "…", "parameters": {…}}}; name a column '
    "of something else differently"
)


def read_message(item: Any, where: str) -> Message:
    """Return a message of a row. Its content is text ("" for null), or a list of parts as the row has it, texts and
    images (`{"type": "image"}`, with what it is an image of in `image`, if the part says so).

    Arguments of tool calls that are JSON text of an object are parsed, because templates encode them.

    Raises UsageError for what is no message, names a part that is neither, and a call without a function's name.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
        raise UsageError(f"{where} holds a message without a text `role`: {str(item)[:80]}", hint=_MESSAGE_HINT)
    found: Message = without_nulls(dict(item))
    calls = found.get("tool_calls")
    if calls is not None:
        found["tool_calls"] = [_call(call, where) for call in _listed(calls, where)]
    if not found.get("tool_calls"):
        found.pop("tool_calls", None)
    content = found.get("content")
    if content is None and "tool_calls" in found:
        found["content"] = ""
    elif isinstance(content, list) and content:
        found["content"] = [_part(part, where) for part in content]
    elif not isinstance(content, str):
        raise UsageError(
            f"{where} holds a message without a text `role` and a text `content`: {str(item)[:80]}", hint=_MESSAGE_HINT
        )
    return found


def messages_of_text(value: Any) -> list[dict[str, Any]] | None:
    """Parse messages that a row has as JSON text, as a CSV file and some of the Hub's have them; None for all else."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    is_messages = isinstance(found, list) and all(isinstance(one, dict) and "role" in one for one in found)
    return found or None if is_messages else None


def content_text(message: Message) -> str:
    """The content as text: the texts of its parts joined without a separator, `<image>` for an image."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "<image>") for part in content)


def content_parts(message: Message) -> list[dict[str, Any]]:
    """The content as a list of parts."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def read_tools(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tools of a row, from its column `tools`: a list of objects, or JSON text of one; empty without any.

    Raises UsageError for anything else in that column.
    """
    value = row.get(TOOLS_COLUMN)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as error:
            raise UsageError(f"{where}: the column {TOOLS_COLUMN} is no JSON: {error}", hint=_TOOLS_HINT) from error
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        raise UsageError(
            f"{where}: the column {TOOLS_COLUMN} is no list of objects: {str(value)[:80]}", hint=_TOOLS_HINT
        )
    tools: list[dict[str, Any]] = without_nulls(value)
    return tools


def wire_message(message: Message) -> WireMessage:
    """Return what a reward server is sent of a message; the protocol's message has no place for other fields."""
    known = {name: value for name, value in message.items() if name in WireMessage.model_fields}
    if "tool_calls" in known:
        known["tool_calls"] = [
            {
                "id": str(call.get("id") or f"call_{number}"),
                "function": {
                    "name": call["function"]["name"],
                    "arguments": _json_text(call["function"]["arguments"]),
                },
            }
            for number, call in enumerate(known["tool_calls"])
        ]
    return WireMessage.model_validate(known)


def check_sendable(message: Message, where: str) -> None:
    """Raise UsageError for a message that a reward server could not be sent, before the first step instead of in it."""
    try:
        wire_message(message)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, problem["loc"]))
        raise UsageError(f"{where} holds a message whose {place}: {problem['msg']}", hint=_MESSAGE_HINT) from error


def _listed(calls: Any, where: str) -> list[Any]:
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except ValueError as error:
            raise UsageError(
                f"{where} holds a message whose tool_calls are no JSON: {error}", hint=_CALL_HINT
            ) from error
    if not isinstance(calls, list):
        raise UsageError(f"{where} holds a message whose tool_calls are no list: {str(calls)[:80]}", hint=_CALL_HINT)
    return calls


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call with its function; one that is a function by itself, `{"name": …, "arguments": …}`, is wrapped."""
    if isinstance(call, Mapping) and "function" not in call and "name" in call:
        rest = {name: value for name, value in call.items() if name not in ("name", "arguments")}
        call = {"type": "function", **rest, "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(f"{where} holds a tool call without a function's name: {str(call)[:80]}", hint=_CALL_HINT)
    return {**call, "function": {**function, "arguments": parsed_arguments(function.get("arguments", {}))}}


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def has_images(message: Message) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part["type"] == "image" for part in content)


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    named = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and named in ("image", "image_url"):
        found = next((part[key] for key in _IMAGES if part.get(key) is not None), None)
        return {"type": "image"} | ({} if found is None else {"image": found})
    raise UsageError(
        f"{where} holds a message with a part of type {named}",
        hint="this trainer trains on text and images: leave the row out",
    )
