"""What is wrong with a body, in words for whoever sent it: the field, the limit, and what was found."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

MAX_SHOWN_CHARS = 80
"""Longest text shown in a message of what a client sent, in characters."""

NOUNS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
}
"""Type of fault → what should have been there."""
BOUNDS = {
    "greater_than": ("must be more than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
    "string_too_long": ("the limit is", "max_length"),
    "string_too_short": ("the least is", "min_length"),
    "too_long": ("the limit is", "max_length"),
    "too_short": ("the least is", "min_length"),
}
"""Type of fault → what the limit is, and where pydantic says it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_VARIANT = re.compile(r"(str|int|float|bool|none|list\[.*\]|dict\[.*\])")
"""A part of a path that is no field: it names which of several types pydantic had tried."""


def described(problems: Sequence[ErrorDetails]) -> list[str]:
    """One sentence for each field that is wrong. `problems` need their context and input."""
    wanted: dict[tuple[int | str, ...], list[str]] = {}
    inputs: dict[tuple[int | str, ...], Any] = {}
    sentences: dict[tuple[int | str, ...], str] = {}
    for problem in problems:
        place = _place(problem)
        if problem["type"] in NOUNS:
            wanted.setdefault(place, []).append(NOUNS[problem["type"]])
            inputs[place] = problem["input"]
            sentences.setdefault(place, "")
        else:
            sentences[place] = _sentence(path(place), problem)
    around = {place[:length] for place in sentences for length in range(len(place))}
    for place, nouns in wanted.items():
        # A list that may be a text or a list of messages is no text; what is wrong is what it holds.
        if place in around:
            del sentences[place]
        else:
            kinds = " or ".join(dict.fromkeys(nouns))
            sentences[place] = sentences[place] or f"{path(place)}: must be {kinds}, not {_shortened(inputs[place])}"
    return list(sentences.values())


def _place(problem: ErrorDetails) -> tuple[int | str, ...]:
    """The path to the fault without pydantic's names of types, unless that is the name of an unknown field."""
    *before, last = problem["loc"] or ("",)
    kept = [part for part in before if isinstance(part, int) or not _VARIANT.fullmatch(part)]
    if isinstance(last, str) and problem["type"] != "extra_forbidden" and _VARIANT.fullmatch(last):
        return tuple(kept)
    return (*kept, last) if problem["loc"] else ()


def _sentence(where: str, problem: ErrorDetails) -> str:
    kind, context, value = problem["type"], problem.get("ctx", {}), problem["input"]
    if kind == "extra_forbidden":
        return f"{where} is unknown"
    if kind == "missing":
        return f"{where}: {problem['msg']}"
    if kind == "value_error":
        return f"{where}: {context['error']}"
    if kind in BOUNDS:
        says, key = BOUNDS[kind]
        limit = context[key]
        bound = f"{says} {limit:{'g' if isinstance(limit, float) else ''}}"
        size = _size(kind, context, value)
        return f"{where}: has {size}; {bound}" if size else f"{where}: {bound}, not {_shortened(value)}"
    return f"{where}: {problem['msg']}, not {_shortened(value)}"


def _size(kind: str, context: Mapping[str, Any], value: Any) -> str | None:
    """The size of a list or a text that is too long or too short; None for any other fault."""
    if kind in ("too_long", "too_short"):
        length = context.get("actual_length")
        return "more entries" if length is None else f"{length} {'entry' if length == 1 else 'entries'}"
    return f"{len(value)} characters" if kind.startswith("string") else None


def path(location: Sequence[int | str]) -> str:
    """("samples", 3, "columns") → samples[3].columns"""
    found = ""
    for part in location:
        found += f"[{part}]" if isinstance(part, int) else f".{shown(part)}" if found else shown(part)
    return found or "the body"


def _shortened(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown(repr(value))


def shown(text: str) -> str:
    """`text`, cut when it is long."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def printable(text: str) -> str:
    """`text` with no control character, on one line: what a reward or a server says must not steer terminals or forge
    logs."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
