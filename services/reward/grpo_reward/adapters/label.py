"""The label rule: how the one gold value that other trainers send fills the columns that rewards need."""

import json
from collections.abc import Sequence
from typing import Any, TypeGuard

from pydantic_core import from_json

MAX_LABEL_CHARS = 2**20
"""Longest label that is JSON, in characters: it is read on the event loop, as the body is."""


class LabelError(ValueError):
    """The label cannot fill the columns; the message says why, and what a label that could looks like."""

    def __init__(self, message: str, kind: str = "ambiguous_label"):
        self.kind = kind
        super().__init__(message)


def columns_of(label: Any, needed: Sequence[str]) -> dict[str, Any]:
    """A label as columns, by name.

    A JSON object, or the text of one, names its columns itself. None and the empty text are no label. Anything else is
    the value of the one column in `needed`; nobody asks for it when that is empty.

    Raises LabelError when several columns are needed, and for text of an object that cannot be read.
    """
    if label is None or label == "":
        return {}
    found = _object(label)
    if found is not None:
        return found
    if len(needed) > 1:
        example = ", ".join(f'"{name}": …' for name in needed)
        raise LabelError(f"the columns {', '.join(needed)} are needed: one value cannot fill them, {{{example}}} can")
    return dict.fromkeys(needed, label)


def is_object_text(label: Any) -> TypeGuard[str]:
    """Whether it is read as JSON."""
    return isinstance(label, str) and label.lstrip().startswith("{")


def _object(label: Any) -> dict[str, Any] | None:
    if is_object_text(label):
        if len(label) > MAX_LABEL_CHARS:
            raise LabelError(f"it is JSON of more than {MAX_LABEL_CHARS} characters")
        try:
            label = from_json(label)  # as strict as the body: no lone surrogates
        except ValueError as error:
            if _would_be_object(label):
                raise LabelError(
                    f"it looks like a JSON object and cannot be read: {error}", "unreadable_label"
                ) from None
            return None  # text that begins with a brace
    return label if isinstance(label, dict) else None


def _would_be_object(text: str) -> bool:
    """Whether a reader that takes more does: half of a pair of surrogates, any digits, line breaks in texts."""
    try:
        return isinstance(_LENIENT.decode(text.strip()), dict)
    except RecursionError:
        return True  # that deep it has been read as JSON
    except ValueError:
        return False


_LENIENT = json.JSONDecoder(strict=False, parse_int=len)
"""Numbers as the number of their digits: Python refuses integers of many."""
