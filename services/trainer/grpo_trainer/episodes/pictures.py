"""Images in the messages of episodes: what a user's code may return of them, and how they are sent.

A part that shows one is `{"type": "image", "image": X}`, or OpenAI's, `{"type": "image_url", "image_url": {"url": X}}`.
X is an image of Pillow, the bytes, the path or the base64 of a file, a data URL, or what the Hub's datasets have,
`{"bytes": …, "path": …}`. Between processes, and to the rollout server, all of them are parts of OpenAI's form with a
data URL.
"""

import base64
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from grpo_proto.images import ImageError, size_of
from grpo_proto.messages.rollout import MAX_IMAGES

from ..data.image_files import base64_of, file_of, may_be_base64, png_of

Message = dict[str, Any]

MAX_PICTURE_MIB = 16
"""Of all that one call shows, in base64: half of a frame."""
MAX_ASPECT = 200
"""Of a longer to a shorter side: that of Qwen's processors. A policy may well ask a tool for a crop of one pixel."""
SHOWN_BY = ("user", "tool")
"""Roles of messages that may show an image."""
TYPES = ("image", "image_url")
KEYS = ("image", "image_url", "bytes", "base64", "path", "url")
"""Where a part, or an object in it, has what it shows; the first that is filled counts."""
MIME_BY_BASE64 = {"iVBOR": "image/png", "/9j/": "image/jpeg", "UklGR": "image/webp"}
WRITTEN = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
"""Modes of Pillow that a PNG keeps as they are."""


class PictureError(Exception):
    """An image that cannot be shown; the message goes on behind who returned it."""


class Room:
    """How many images one call may still show, and how large."""

    def __init__(self) -> None:
        self.count, self.size = MAX_IMAGES, MAX_PICTURE_MIB * 2**20

    def take(self, url: str) -> None:
        """Raises PictureError for one image more than there may be, or a larger one."""
        if self.count == 0:
            raise PictureError(f"more than {MAX_IMAGES} images, the most that one call can show")
        if len(url) > self.size:
            raise PictureError(
                f"images of more than {MAX_PICTURE_MIB} MiB in base64, the most that one call can show: "
                "make them smaller"
            )
        self.count, self.size = self.count - 1, self.size - len(url)


def is_pillow(found: Any) -> bool:
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(found, module.Image)


def shows_picture(part: Any) -> bool:
    return is_pillow(part) or (isinstance(part, dict) and part.get("type") in TYPES)


def part_of(found: Any, room: Room) -> dict[str, Any]:
    """A part with a data URL for one that shows an image in any form. Raises PictureError."""
    try:
        encoded = _encoded(found)
        width, height = size_of(encoded)
    except ImageError as error:
        raise PictureError(f"an image that cannot be used: {error}") from error
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise PictureError(
            f"an image of {width} × {height} pixels, thinner than 1 : {MAX_ASPECT}, which models' processors refuse"
        )
    part = url_part(encoded)
    room.take(part["image_url"]["url"])
    return part


def url_part(encoded: str) -> dict[str, Any]:
    """The part that shows an image, of the base64 of its file."""
    mime = next((mime for begin, mime in MIME_BY_BASE64.items() if encoded.startswith(begin)), "image/png")
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{encoded}"}}


def has_pictures(messages: Sequence[Message]) -> bool:
    return any(True for _ in _pictures(messages))


def fitted(messages: Sequence[Message], fit: Callable[[str], str]) -> list[Message]:
    """The messages of a process, whose images are data URLs, each made smaller by `fit`. Raises ImageError."""

    def one(part: Any) -> Any:
        return url_part(fit(_of_data_url(part["image_url"]["url"]))) if shows_picture(part) else part

    for part in _pictures(messages):
        url = part.get("image_url")
        if not isinstance(url, dict) or not isinstance(url.get("url"), str):
            raise ImageError("it has no data URL")
    return [_with_parts(message, one) for message in messages]


def without_pictures(messages: Sequence[Message]) -> list[Message]:
    """The messages with `{"type": "image"}` for each image: transcripts are kept, logged and sent to rewards."""
    return [
        _with_parts(message, lambda part: {"type": "image"} if shows_picture(part) else part) for message in messages
    ]


def row_with_images(
    row: Mapping[str, Any],
    prompt: str | list[Message],
    images: Sequence[str],
    column: tuple[str, bool] | None,
    *,
    form: Callable[[str], Any] = str,
) -> tuple[dict[str, Any], str | list[Message]]:
    """The row and its prompt with the row's images, which are given as base64.

    The prompt, and the column that it is from, show them at their parts. `column` names the one that had the row's
    images, and whether that was a list: it has all of them, in the order of the prompt, in `form`.
    """
    left = iter(images)

    def one(part: Any) -> Any:
        return url_part(next(left)) if part == {"type": "image"} else part

    shown = prompt
    if images and isinstance(prompt, list):
        shown = [_with_parts(message, one) for message in prompt]
    filled = {name: shown if shown is not prompt and value == prompt else value for name, value in row.items()}
    if column is not None:
        name, is_list = column
        of_column = [form(encoded) for encoded in images]
        filled[name] = of_column if is_list else next(iter(of_column), None)
    return filled, shown


def opened(encoded: str) -> Any:
    """The image of Pillow, turned as its file says. Its pixels are read when they are needed."""
    from PIL import Image, ImageOps

    image = Image.open(BytesIO(base64.b64decode(encoded)))
    return image if image.getexif().get(0x0112, 1) == 1 else ImageOps.exif_transpose(image)


def _pictures(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    contents = (message.get("content") for message in messages)
    return (part for content in contents if isinstance(content, list) for part in content if shows_picture(part))


def _with_parts(message: Message, one: Callable[[Any], Any]) -> Message:
    content = message.get("content")
    return {**message, "content": list(map(one, content))} if isinstance(content, list) else message


def _encoded(found: Any) -> str:
    """The base64 of an image's file. Raises PictureError."""
    if is_pillow(found):
        return _png(found)
    if isinstance(found, Mapping):
        filled = (found[key] for key in KEYS if found.get(key) is not None)
        value = next((value for value in filled if not isinstance(value, str | bytes) or value), None)
        if value is None:
            raise PictureError(f"a part of type image without an image; it is in one of {', '.join(KEYS)}")
        return _encoded(value)
    if isinstance(found, bytes | bytearray | memoryview):
        return base64.b64encode(found).decode()
    if isinstance(found, Path):
        return _read(found)
    if not isinstance(found, str):
        raise PictureError(f"an image of type {type(found).__name__}: give one of Pillow, bytes, a path or base64")
    if found.startswith("data:"):
        return _of_data_url(found)
    if found.startswith(("http://", "https://")):
        raise PictureError(f"an image at {found[:200]}: URLs are not fetched; download it, and give the file")
    if (path := file_of(found)) is not None:
        return _read(path)
    if may_be_base64(found):
        return found
    raise PictureError(f"the image {found[:200]}, which is no file")


def _png(image: Any) -> str:
    """The image, turned as its file says. Raises PictureError."""
    from PIL import ImageOps

    if image.mode in ("I", "F"):
        raise PictureError(f"an image of mode {image.mode}, whose values may be of any range: make it RGB or L")
    try:
        image = ImageOps.exif_transpose(image)
        return png_of(image if image.mode in WRITTEN else image.convert("RGB"))
    except (ValueError, OSError, SystemError) as error:  # as of one that was closed, or has no pixels
        raise PictureError(f"an image of mode {image.mode} that cannot be written: {error}") from error


def _of_data_url(url: str) -> str:
    head, comma, encoded = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ImageError("its URL is not data:image/…;base64,…")
    return encoded


def _read(path: Path) -> str:
    try:
        return base64_of(path)
    except OSError as error:
        raise PictureError(f"the image {path}, which cannot be read: {error.strerror or error}") from error
