"""JSON that is the same to every reader: RFC 8259, without the choices that Python's parser makes silently."""

import json
import math
from typing import Any, NoReturn

from grpo_proto.nesting import nesting

MAX_DEPTH = 32
"""Nested arrays and objects: checking one level of a schema that contains itself takes a dozen calls of the stack."""


class NotStrictError(ValueError):
    """Python's parser takes it, but it is no JSON, or not the same to every reader."""


def strict_json(text: str) -> Any:
    """Raises ValueError or RecursionError when `text` is no JSON, NotStrictError when only Python says that it is."""
    return _checked(_DECODER.decode(text))


def strict_json_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at `start`, and where it ends. Raises as `strict_json`."""
    value, end = _DECODER.raw_decode(text, start)
    return _checked(value), end


def _checked(value: Any) -> Any:
    if nesting(value) > MAX_DEPTH:
        raise NotStrictError(f"more than {MAX_DEPTH} nested levels")
    return value


def _no_constant(name: str) -> NoReturn:
    raise NotStrictError(f"{name} is no JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotStrictError("a number is beyond the range of a double")
    return value


def _int(digits: str) -> int:
    _float(digits)
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotStrictError("an object has the same key twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_float, parse_int=_int, object_pairs_hook=_object)
