"""The answers that are no scores, in the shape all services share."""

import difflib
from collections.abc import Iterable
from itertools import islice

from pydantic import ValidationError

from grpo_proto.server.refusal import Refusal as Refusal

from .faults import MAX_SHOWN_CHARS, described, shown

MAX_COMPARED_NAMES, MAX_LISTED_NAMES = 200, 40
"""Most names compared, and listed, for a hint: a sample may have hundreds of thousands of columns."""
MAX_DESCRIBED_FAULTS = 100
"""Most faults described: three are told, and several may be about one field."""


EXAMPLES = {"rewards": '{"name": "accuracy"}', "samples": '{"completion": "…", "columns": {"solution": "…"}}'}
"""Field of our own request → an entry of its list, for those who send a text."""


def shutting_down() -> Refusal:
    """The refusal of what is not answered when the server ends."""
    return Refusal(
        503,
        "shutting_down",
        "the server ends",
        hint="send the request elsewhere",
        retryable=True,
        headers={"Connection": "close"},
    )


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
    problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":
        halved = "hex escape" in problems[0]["msg"]
        hint = r"a text has half of a surrogate pair, such as \ud83d alone: no text in UTF-8 has that"
        told = hint if halved else "the body must be one JSON object"
        return Refusal(400, "malformed_json", problems[0]["msg"], hint=told)
    # A misspelt field is often also a missing one: the spelling is what to mend.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    sentences = described(problems[:MAX_DESCRIBED_FAULTS])
    more = len(sentences) - 3 + max(len(problems) - MAX_DESCRIBED_FAULTS, 0)
    rest = f" (and {more} more)" if more > 0 else ""
    message = "; ".join(sentences[:3]) + rest
    if problems[0]["type"] == "extra_forbidden":
        hint = nearest(str(problems[0]["loc"][-1]), known_fields)
        return Refusal(422, "unknown_field", message, hint=hint)
    kind, (field, *_) = problems[0]["type"], problems[0]["loc"] or ("",)
    example = EXAMPLES.get(str(field)) if kind == "model_type" else None
    return Refusal(422, "invalid_value", message, hint=example and f"an entry of {field} looks like {example}")


def busy(message: str) -> Refusal:
    """The refusal of a request for which there is no place now."""
    return Refusal(
        429,
        "busy",
        message,
        hint="wait, or start more replicas",
        retryable=True,
        headers={"Retry-After": "1"},
    )
