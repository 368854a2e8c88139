"""Images of rows: what a dataset has of them, and where they stand in the prompt.

A row has its images in a column, one or a list, or in the parts of its messages. Each is a file's path, its base64
(with `data:image/…;base64,` before it or without), or what the Hub's datasets have, `{"bytes": …, "path": …}`. A row
keeps where each image is, and a file is read when its prompt is sampled.

In a prompt an image is a part `{"type": "image"}` of a message, which the chat template turns into the model's token. A
row that writes none gets its images before the text of its first user message, and a text with as many `<image>` as the
row has images has them there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from grpo_proto.images import ImageError, pixels_of, pixels_of_file
from grpo_proto.messages.rollout import MAX_IMAGES

from ..errors import UsageError
from .image_files import file_of, may_be_base64
from .messages import has_images
from .recipes import Message
from .rendering import Prompt
from .values import Row

USUAL_COLUMNS = ("images", "image")
TAG = "<image>"
IMAGE_PART = {"type": "image"}
FILE = "file:"
"""Before the path of an image that is a file, where a row says where it is."""
_HINT = 'an image is a path, base64, or {"bytes": …, "path": …}; name another column in data.image_column'


@dataclass(frozen=True)
class RowImages:
    """Where the images of a row are, in the order of its prompt; the name of the column that it had for them, and
    whether that held a list."""

    sources: list[str]
    column: tuple[str, bool] | None = None


@dataclass(frozen=True)
class ImageColumn:
    """Where rows have images. `column` None is that of `USUAL_COLUMNS` which a row has filled; relative paths are those
    of `folder`. `token_id` is the model's, None for one that sees no images."""

    column: str | None = None
    folder: str = ""
    token_id: int | None = None

    def taken(self, row: Row, where: str) -> tuple[Row, list[Any], tuple[str, bool] | None]:
        """Return the row without the column, what it has in it, and the column's name and whether it has a list. A
        model that sees no images leaves them alone.

        Raises UsageError for images in both usual columns.
        """
        names = USUAL_COLUMNS if self.column is None else (self.column,)
        filled = [name for name in names if row.get(name) not in (None, "", [])]
        if self.token_id is None or not any(name in row for name in names):
            return row, [], None
        if len(filled) > 1:
            raise UsageError(
                f"{where} has images in two columns, {', '.join(filled)}", hint="name one: data.image_column"
            )
        name = filled[0] if filled else next(name for name in names if name in row)
        value = row[name] if filled else []
        is_list = isinstance(row[name], list)
        left = {key: one for key, one in row.items() if key not in names}
        return left, value if isinstance(value, list) else [value], (name, is_list)

    def placed(self, prompt: Prompt, given: Sequence[Any], where: str) -> tuple[Prompt, list[str]]:
        """Return the prompt with a part for each image, and where the images are, in their order.

        Raises UsageError for images that are not there or in no known form, and for other numbers of images and places.
        """
        if isinstance(prompt, str):
            return prompt, [self.source(one, where) for one in given]
        if given and not any(map(has_images, prompt)):
            prompt = _with_places(prompt, len(given), where)
        left, sources = list(given), list[str]()
        placed = []
        for message in prompt:
            content = message["content"]
            if isinstance(content, list):
                parts = []
                for part in content:
                    if part["type"] == "image":
                        own = part.get("image")
                        if own is None and not left:
                            raise _another_number(where, len(given), "more")
                        sources.append(self.source(left.pop(0) if own is None else own, where))
                        part = IMAGE_PART
                    parts.append(part)
                message = message | {"content": parts}
            placed.append(message)
        if left:
            raise _another_number(where, len(given), f"{len(given) - len(left)}")
        if len(sources) > MAX_IMAGES:
            raise UsageError(f"{where} has {len(sources)} images; a prompt may have {MAX_IMAGES}", hint="leave it out")
        return placed, sources

    def check_seen(self, message: Message, where: str) -> None:
        """Raises UsageError for a message that shows an image to a model that sees none."""
        if self.token_id is None and has_images(message):
            raise UsageError(
                f"{where} holds a message with a part of type image, and images are not seen here",
                hint="prompts have them with a vision-language model that docs/model-families.md lists, demonstrations "
                "have none: leave the row out",
            )

    def check_rendered(self, token_ids: Sequence[int], sources: Sequence[str], where: str) -> None:
        """Raises UsageError unless the rendered prompt has the model's image token once for each image."""
        if self.token_id is None:
            return
        count = token_ids.count(self.token_id)
        if count != len(sources):
            raise UsageError(
                f"{where} has {len(sources)} images, and its tokens have {count} times the model's image token "
                f"{self.token_id}",
                hint="give the prompt as messages, and a chat template that shows their image parts "
                "(model.chat_template)",
            )

    def source(self, value: Any, where: str) -> str:
        """Return where an image is: `file:` and its path, or the base64 of its file."""
        if isinstance(value, Mapping):
            value = next((value[key] for key in ("bytes", "base64", "path", "url", "image") if value.get(key)), None)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where} has an image of type {type(value).__name__}", hint=_HINT)
        if value.startswith("data:"):
            return self._encoded(value.partition(",")[2], where)
        if value.startswith(("http://", "https://")):
            raise UsageError(f"{where} has an image at {value[:200]}", hint="download it, and give its path")
        path = file_of(value, self.folder)
        if path is not None:
            with _named(f"{where} has the image {value[:200]}"):
                pixels_of_file(path)
            return f"{FILE}{path}"
        if may_be_base64(value):
            return self._encoded(value, where)
        raise UsageError(
            f"{where} has the image {value[:200]}, which is no file" + (f" in {self.folder}" if self.folder else ""),
            hint="relative paths are those of data.image_folder, or of the folder that the dataset is in",
        )

    def _encoded(self, text: str, where: str) -> str:
        with _named(f"{where} has an image in base64"):
            pixels_of(text)
        return text


def all_files(sources: Sequence[str]) -> bool:
    """Whether all images are files, and there is one."""
    return bool(sources) and all(source.startswith(FILE) for source in sources)


@contextmanager
def _named(image: str) -> Iterator[None]:
    """Turn what is wrong with an image into a UsageError that begins with its name."""
    try:
        yield
    except ImageError as error:
        raise UsageError(f"{image}, which cannot be used: {error}", hint=_HINT) from error


def _with_places(prompt: Sequence[Message], count: int, where: str) -> list[Message]:
    """Where the tags are, or before the first message of the user."""
    tags = sum(text.count(TAG) for message in prompt for text in _texts(message))
    if tags not in (0, count):
        raise _another_number(where, count, f"{tags} {TAG}")
    first = next((number for number, message in enumerate(prompt) if message["role"] == "user"), None)
    if first is None:
        raise UsageError(f"{where} has images, and no message of the user that could show them")
    made = []
    for number, message in enumerate(prompt):
        parts = [part for text in _texts(message) for part in _cut(text)] if tags else _text_parts(message)
        before = [IMAGE_PART] * count if number == first and not tags else []
        changed = bool(before) or (tags > 0 and any(part["type"] == "image" for part in parts))
        made.append(message | {"content": [*before, *parts]} if changed else message)
    return made


def _texts(message: Message) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _text_parts(message: Message) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in _texts(message) if text]


def _cut(text: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for number, piece in enumerate(text.split(TAG)):
        parts += [IMAGE_PART] if number else []
        parts += [{"type": "text", "text": piece}] if piece else []
    return parts


def _another_number(where: str, count: int, places: str) -> UsageError:
    return UsageError(
        f"{where} has {count} images, and its messages have places for {places}",
        hint=f"write a part of type image, or {TAG} in a text, for each image, or none at all",
    )
