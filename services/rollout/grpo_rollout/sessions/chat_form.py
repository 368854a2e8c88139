"""The one canonical form of chat messages: what equals a recorded message, and what cannot be rendered.

Two messages are equal when their roles, texts, images and calls are: null, "" and no parts are the same text, parts of
text are joined, outer whitespace and unknown fields (cache marks) do not count, and arguments are compared as JSON. A
recorded thought counts only when the request sends one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
THOUGHTS = ("reasoning", "reasoning_content")
"""Names under which clients send the thought before an assistant's text back."""
KEY_BYTES = 16
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image", "image")
"""Of OpenAI's chat completions, of its Responses, of Anthropic's Messages and chat templates."""
SHOW_IMAGES = ("user", "tool")

ChatMessage = dict[str, Any]


class BadMessagesError(ValueError):
    """The messages of a request cannot be rendered without losing a part of them."""


def chat_message(sent: Any, position: int, images: dict[str, str] | None = None) -> ChatMessage:
    """Return message `position` of a request in the form that chat templates read.

    Its content is a text, or with images parts of text and of images, which have names there. Its calls have parsed
    arguments where these are a JSON object, `reasoning_content` holds a thought, and no other field is left but `name`
    and `tool_call_id`. `images` takes the base64 of each image by its name. Raises BadMessagesError.
    """
    if not isinstance(sent, dict):
        raise BadMessagesError(f"message {position} is no object")
    role = sent.get("role")
    if role not in ROLES:
        raise BadMessagesError(f"message {position} has the role {str(role)[:100]!r}; the roles are {', '.join(ROLES)}")
    if len(sent) == 2 and type(sent.get("content")) is str:
        return sent  # it has this form, as most have
    content = _content(sent.get("content"), position, images if role in SHOW_IMAGES else None)
    found: ChatMessage = {"role": role, "content": content}
    if role == "assistant":
        thought = next((sent[name] for name in THOUGHTS if sent.get(name)), None)
        if thought is not None:
            found["reasoning_content"] = _content(thought, position, None)
        if sent.get("tool_calls"):
            found["tool_calls"] = [_call(call, position) for call in sent["tool_calls"]]
    found |= {name: str(sent[name]) for name in ("name", "tool_call_id") if sent.get(name) is not None}
    return found


def _content(content: Any, position: int, images: dict[str, str] | None) -> str | list[dict[str, str]]:
    """Return a text, or parts where images are shown. `images` None: none may be."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise BadMessagesError(f"the content of message {position} is neither a text nor a list of parts")
    parts: list[dict[str, str]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in TEXT_PARTS and isinstance(part.get("text"), str):
            text = part["text"]
            if parts and parts[-1]["type"] == "text":
                text = parts.pop()["text"] + text
            parts += [{"type": "text", "text": text}] if text else []
        elif kind in IMAGE_PARTS and images is not None:
            encoded = _encoded_image(part, position)
            name = hashlib.blake2b(encoded.encode(), digest_size=KEY_BYTES).hexdigest()
            images[name] = encoded
            parts.append({"type": "image", "image": name})
        else:
            also = " and images" if images is not None else " alone"
            raise BadMessagesError(f"message {position} holds a part of type {str(kind)[:100]}; send text{also}")
    return text_of(parts) if all(part["type"] == "text" for part in parts) else parts


def _encoded_image(part: Mapping[str, Any], position: int) -> str:
    """Return the base64 of an image, in the form of any of the APIs. No server calls the URL that a program sends."""
    found = part.get("image_url") or part.get("source") or part.get("image")
    if isinstance(found, Mapping):
        found = found.get("url") or found.get("data")
    if not isinstance(found, str) or not found:
        raise BadMessagesError(f"message {position} holds a part of an image without its data")
    found = "".join(found.split())  # lines, as MIME writes them
    if found[:5].lower() == "data:":
        head, _, found = found.partition(",")
        if not head.endswith(";base64") or not found:
            raise BadMessagesError(f"message {position} holds a data URL of an image that is not base64")
    elif "://" in found[:20]:
        raise BadMessagesError(f"message {position} shows an image by its URL: send a data URL, data:image/…;base64,…")
    return found


def text_of(content: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a content in the canonical form."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def as_texts(messages: Sequence[ChatMessage], placeholder: str | None) -> list[ChatMessage]:
    """Return messages whose texts hold a placeholder of images with a blank in it: in a text it stands for no image.

    A policy could else write it, and a program that repeats it could not go on.
    """
    if not placeholder:
        return list(messages)
    broken = f"{placeholder[0]} {placeholder[1:]}"

    def shown(content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        if isinstance(content, str):
            return content.replace(placeholder, broken)
        return [{name: value.replace(placeholder, broken) for name, value in part.items()} for part in content]

    fields = ("content", "reasoning_content")
    return [{**message, **{name: shown(message[name]) for name in fields if name in message}} for message in messages]


def images_of(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the names of the images that messages show, in order."""
    contents = (message["content"] for message in messages if not isinstance(message["content"], str))
    return [part["image"] for content in contents for part in content if part["type"] == "image"]


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
    content = message["content"]
    if not isinstance(content, str):
        content = tuple((part["type"], part.get("text", "").strip(), part.get("image", "")) for part in content)
    return (
        message["role"],
        content.strip() if isinstance(content, str) else content,
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
