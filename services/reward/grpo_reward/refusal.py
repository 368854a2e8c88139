"""The answers that are no scores, in the shape all services share."""

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from grpo_proto import ErrorBody, ErrorDetail

MAX_COMPARED_NAMES, MAX_LISTED_NAMES = 200, 40
"""In a hint: a sample may have hundreds of thousands of columns."""
MAX_SHOWN_CHARS = 80
"""Of what a client sent, in a message."""


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of ours
    """A request gets `status` and an ErrorBody."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        hint: str | None = None,
        retryable: bool = False,
        headers: dict[str, str] | None = None,
    ):
        self.status, self.headers = status, headers or {}
        self.body = ErrorBody(error=ErrorDetail(type=type, message=message, hint=hint, retryable=retryable))
        super().__init__(message)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, or those that there are."""
    names = sorted(shown(other) for other in islice(known, MAX_COMPARED_NAMES))
    close = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    more = ", …" if len(names) > MAX_LISTED_NAMES else ""
    return f"known: {', '.join(names[:MAX_LISTED_NAMES])}{more}" if names else "there are none"


def invalid_request(error: ValidationError, known_fields: Iterable[str]) -> Refusal:
    """400 for text that is no JSON, 422 for JSON that is no request; the message names the fields."""
    problems = error.errors(include_url=False, include_context=False)
    if problems[0]["type"] == "json_invalid":
        return Refusal(400, "malformed_json", problems[0]["msg"], hint="the body must be one JSON object")
    # A misspelt field is often also a missing one: the spelling is what to mend.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    rest = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    message = "; ".join(map(_described, problems[:3])) + rest
    if problems[0]["type"] == "extra_forbidden":
        hint = nearest(str(problems[0]["loc"][-1]), known_fields)
        return Refusal(422, "unknown_field", message, hint=hint)
    return Refusal(422, "invalid_value", message)


def _described(problem: ErrorDetails) -> str:
    where = _path(problem["loc"]) or "the body"
    if problem["type"] == "extra_forbidden":
        return f"{where} is unknown"
    got = "" if problem["type"] == "missing" else f", not {_shortened(problem['input'])}"
    return f"{where}: {problem['msg']}{got}"


def _path(location: Sequence[int | str]) -> str:
    """("samples", 3, "columns") → samples[3].columns"""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{shown(part)}" if path else shown(part)
    return path


def _shortened(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(repr(value))


def shown(text: str) -> str:
    """`text`, cut when it is long."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
