"""The messages that a user's code returns: checked, in the form that a rollout server takes, and cut at 1 MiB.

Content is a text, or a list of parts where it shows an image (`pictures.py`).
"""

from typing import Any

from .pictures import SHOWN_BY, PictureError, is_pillow, part_of, shows_picture
from .pictures import Room as PictureRoom

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
    room = Room()
    messages = []
    for one in found:
        message = _message(one, by)
        if (content := message.get("content")) is not None:
            message["content"] = room.content(content, by)
        if isinstance(message.get("content"), list) and message["role"] not in SHOWN_BY:
            raise EnvironmentFault(
                f"{by} returned an image in a message of role {message['role']}: only one of {' or '.join(SHOWN_BY)} "
                "can show it"
            )
        messages.append(message)
    return messages


class Room:
    """What one call may still show to the policy: `MAX_CHARACTERS` of text, and some images."""

    def __init__(self) -> None:
        self.left, self.pictures = MAX_CHARACTERS, PictureRoom()

    def text(self, text: str) -> str:
        """Valid Unicode, cut to what is left."""
        found = cut(text, self.left)
        self.left = max(0, self.left - len(text))
        return found

    def content(self, found: Any, by: str) -> str | list[dict[str, Any]]:
        """The text of a text or of parts that are texts; parts, where one is an image. Raises EnvironmentFault."""
        if isinstance(found, str):
            return self.text(found)
        parts = found if isinstance(found, list) else [found]
        if not any(map(shows_picture, parts)):
            return self.text("".join(_text(part, by) for part in parts))
        try:
            return [
                part_of(part, self.pictures)
                if shows_picture(part)
                else {"type": "text", "text": self.text(_text(part, by))}
                for part in parts
                if shows_picture(part) or _text(part, by)
            ]
        except PictureError as error:
            raise EnvironmentFault(f"{by} returned {error}") from error


def _message(found: Any, by: str) -> Message:
    if isinstance(found, str):
        return {"role": "user", "content": found}
    if not isinstance(found, dict) or found.get("role") not in ROLES:
        raise EnvironmentFault(
            f"{by} returned {found!r:.200} as a message; it is {{'role': …, 'content': …}}, its role one of "
            f"{', '.join(ROLES)}"
        )
    message = {name: found[name] for name in FIELDS if found.get(name) is not None}
    content = message.get("content")
    if content is not None and not isinstance(content, str | list) and not is_pillow(content):
        raise EnvironmentFault(
            f"{by} returned a message whose content is {type(content).__name__}, neither a text nor parts"
        )
    return message if "tool_calls" in message else {"content": "", **message}


def _text(part: Any, by: str) -> str:
    """The text of a part. Raises EnvironmentFault for a part of another kind."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text", ""))
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise EnvironmentFault(
        f"{by} returned a part of type {kind!r:.50}; only texts and images can be shown to the policy"
    )


def cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Valid Unicode of at most `limit` characters, and a note when it was longer."""
    if len(text) > limit:
        text = text[:limit] + f"\n[cut: {len(text) - limit:,} more characters]"
    return text.encode(errors="replace").decode()
