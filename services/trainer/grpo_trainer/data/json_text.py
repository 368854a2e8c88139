"""JSON text → values, in which nothing is lost: what `json` would drop without a word is marked, to be refused.

It is marked and not refused here, because only the reader of rows knows which row of a document it is in.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn


class ObjectWithKeyTwice(dict[str, Any]):
    """An object in which `key` stands twice."""

    key = ""


class BeyondDouble(float):
    """Infinity, in place of the number `text`."""

    text = ""


def parse_json(text: str, *, constants: bool = True) -> Any:
    """Parse `text`; without `constants`, NaN and Infinity are no JSON. Raises ValueError, such as JSONDecodeError."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_float,
            parse_constant=None if constants else _refuse_constant,
        )
    except RecursionError as error:
        raise ValueError("too many brackets inside each other") from error


def first_twice(names: Sequence[str]) -> str | None:
    """The first name that stands twice, if there is one."""
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked = ObjectWithKeyTwice(found)
    marked.key = first_twice([key for key, _ in pairs]) or ""
    return marked


def _float(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    marked = BeyondDouble(value)
    marked.text = text if len(text) <= 40 else f"{text[:40]}…"
    return marked


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
