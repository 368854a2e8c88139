"""The messages that a user's code returns: checked, in the form that a rollout server takes, and cut at 1 MiB."""

from typing import Any

MAX_CHARACTERS = 2**20
"""Of all that one call shows to the policy."""
ROLES = ("system", "developer", "user", "assistant", "tool")
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content")

Message = dict[str, Any]


class EnvironmentFault(Exception):  # noqa: N818 - the fault is the environment's
    """A user's code returned something that an episode cannot use."""


def first_messages(prompt: str | list[Message]) -> list[Message]:
    """The messages of a row's prompt; a text is a user's message."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if prompt else []
    return new_messages(prompt, by="the row")


def new_messages(found: Any, *, by: str) -> list[Message]:
    """Messages that `by` returned: a text is a user's, None and an empty text are none. Raises EnvironmentFault."""
    if found is None or found == "":
        return []
    if isinstance(found, (str, dict)):
        found = [found]
    if not isinstance(found, (list, tuple)):
        raise EnvironmentFault(f"{by} returned {type(found).__name__} for messages; return a list, a text or None")
    left = MAX_CHARACTERS
    messages = []
    for one in found:
        message = _message(one, by)
        text = message.get("content")
        if isinstance(text, str):
            message["content"] = cut(text, left)
            left = max(0, left - len(text))
        messages.append(message)
    return messages


def _message(found: Any, by: str) -> Message:
    if isinstance(found, str):
        return {"role": "user", "content": found}
    if not isinstance(found, dict) or found.get("role") not in ROLES:
        raise EnvironmentFault(
            f"{by} returned {found!r:.200} as a message; it is {{'role': …, 'content': …}}, its role one of "
            f"{', '.join(ROLES)}"
        )
    message = {name: found[name] for name in FIELDS if found.get(name) is not None}
    if isinstance(content := message.get("content"), list):
        message["content"] = text_of(content, by)
    elif content is not None and not isinstance(content, str):
        raise EnvironmentFault(f"{by} returned a message whose content is {type(content).__name__}, no text")
    return message if "tool_calls" in message else {"content": "", **message}


def text_of(parts: list[Any], by: str) -> str:
    """The text of content parts. Raises EnvironmentFault for images: only text is rendered."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") == "text":
            texts.append(str(part.get("text", "")))
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise EnvironmentFault(f"{by} returned a part of type {kind!r:.50}; only text can be shown to the policy")
    return "".join(texts)


def cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Valid Unicode of at most `limit` characters, and a note when it was longer."""
    if len(text) > limit:
        text = text[:limit] + f"\n[cut: {len(text) - limit:,} more characters]"
    return text.encode(errors="replace").decode()
