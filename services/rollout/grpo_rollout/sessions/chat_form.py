"""The one canonical form of chat messages: what equals a recorded message, and what cannot be rendered.

Two messages are equal when their roles, texts and calls are: null, "" and no parts are the same text, parts are joined,
outer whitespace and unknown fields (cache marks) do not count, and arguments are compared as JSON. A recorded thought
counts only when the request sends one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
THOUGHTS = ("reasoning", "reasoning_content")
"""Names under which clients send the thought before an assistant's text back."""
KEY_BYTES = 16

ChatMessage = dict[str, Any]


class BadMessagesError(ValueError):
    """The messages of a request cannot be rendered without losing a part of them."""


def chat_message(sent: Any, position: int) -> ChatMessage:
    """Return message `position` of a request in the form that chat templates read.

    Its content is a text, its calls have parsed arguments where these are a JSON object, `reasoning_content` holds a
    thought, and no other field is left but `name` and `tool_call_id`. Raises BadMessagesError.
    """
    if not isinstance(sent, dict):
        raise BadMessagesError(f"message {position} is no object")
    role = sent.get("role")
    if role not in ROLES:
        raise BadMessagesError(f"message {position} has the role {str(role)[:100]!r}; the roles are {', '.join(ROLES)}")
    if len(sent) == 2 and type(sent.get("content")) is str:
        return sent  # it has this form, as most have
    found: ChatMessage = {"role": role, "content": _text(sent.get("content"), position)}
    if role == "assistant":
        thought = next((sent[name] for name in THOUGHTS if sent.get(name)), None)
        if thought is not None:
            found["reasoning_content"] = _text(thought, position)
        if sent.get("tool_calls"):
            found["tool_calls"] = [_call(call, position) for call in sent["tool_calls"]]
    found |= {name: str(sent[name]) for name in ("name", "tool_call_id") if sent.get(name) is not None}
    return found


def _text(content: Any, position: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise BadMessagesError(f"the content of message {position} is neither a text nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise BadMessagesError(f"message {position} holds a part of type {str(kind)[:100]}; send text parts alone")
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, position: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not call.get("id"):
        raise BadMessagesError(f"message {position} holds a call without an id or a function's name")
    arguments = _arguments(function.get("arguments"))
    return {"id": str(call["id"]), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _arguments(arguments: Any) -> Any:
    """Return the object that `arguments` are, or the text as it is when they are none."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def check_new(messages: Sequence[ChatMessage], *, before: Sequence[ChatMessage] = (), position: int = 0) -> None:
    """Check messages that are about to be rendered. `before`: those in front of them, the last first needed.

    `position` is that of the first message in the request. Raises BadMessagesError: a tool's result without a call, two
    results for one call, arguments that are no JSON object.
    """
    waiting: set[str] = set()
    answered: set[str] = set()
    for message in before:
        waiting, answered = _after(message, waiting, answered)
    for number, message in enumerate(messages, position):
        for call in message.get("tool_calls", ()):
            if not isinstance(call["function"]["arguments"], dict):
                raise BadMessagesError(f"message {number}: the arguments of call {call['id']} are no JSON object")
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id in answered:
                raise BadMessagesError(f"message {number} is a second result of call {call_id}")
            if call_id not in waiting:
                raise BadMessagesError(f"message {number} is the result of call {call_id}, which nobody made")
        waiting, answered = _after(message, waiting, answered)


def _after(message: ChatMessage, waiting: set[str], answered: set[str]) -> tuple[set[str], set[str]]:
    """Return the calls that wait for a result after a message, and those that have one."""
    if message["role"] == "assistant":
        return {call["id"] for call in message.get("tool_calls", ())}, set()
    if message["role"] == "tool":
        call_id = message.get("tool_call_id", "")
        return waiting - {call_id}, answered | {call_id}
    return set(), set()


Canonical = tuple[Any, ...]


def canonical(message: ChatMessage, *, thought: bool = True) -> Canonical:
    """Return what equal messages have in common. `thought` False leaves the thought out.

    A tuple, whose hash costs a tenth of a digest: it is made of every message of every request.
    """
    said = message.get("reasoning_content", "").strip() if thought else ""
    calls: Any = message.get("tool_calls", ())
    if calls:
        calls = tuple((call["id"], call["function"]["name"], _as_json(call["function"]["arguments"])) for call in calls)
    return (
        message["role"],
        message["content"].strip(),
        said,
        calls,
        message.get("tool_call_id", ""),
        message.get("name", ""),
        message.get("token_ids", ""),
    )


def _as_json(value: Any) -> str:
    """Return one text for equal values: the order of names does not count."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> bytes:
    """Return a short digest of anything that JSON can hold; the order of names does not count."""
    return hashlib.blake2b(_as_json(value).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
