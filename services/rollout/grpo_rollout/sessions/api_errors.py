"""The errors of a session in the forms of the APIs that programs speak, as answers and as events of a stream."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_proto.server.refusal import Refusal

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True)
class ErrorForm:
    """How one API writes an error: `body` of an answer, and the text of an `event` in a stream."""

    body: Callable[[Refusal], dict[str, Any]]
    event: Callable[[Refusal], str]


def _text(refusal: Refusal) -> str:
    detail = refusal.detail
    return f"{detail.message} ({detail.hint})" if detail.hint else detail.message


def _openai(refusal: Refusal) -> dict[str, Any]:
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"error": {"message": _text(refusal), "type": kind, "param": None, "code": refusal.detail.type}}


def _responses_event(refusal: Refusal) -> str:
    error = {"type": "error", "sequence_number": 0} | {
        name: value for name, value in _openai(refusal)["error"].items() if name != "type"
    }
    return f"event: error\ndata: {json.dumps(error)}\n\n"


def _anthropic(refusal: Refusal) -> dict[str, Any]:
    kind = ANTHROPIC_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    text = _text(refusal)
    if refusal.detail.type == "context_length_exceeded":
        text = f"prompt is too long: {text}"  # the words on which programs shorten their history
    return {"type": "error", "error": {"type": kind, "message": text}}


CHAT = ErrorForm(_openai, lambda refusal: f"data: {json.dumps(_openai(refusal))}\n\n")
RESPONSES = ErrorForm(_openai, _responses_event)
ANTHROPIC = ErrorForm(_anthropic, lambda refusal: f"event: error\ndata: {json.dumps(_anthropic(refusal))}\n\n")


def form_of(path: str) -> ErrorForm:
    """Return the form of the API that a route belongs to."""
    if path.endswith(("/messages", "/messages/count_tokens")):
        return ANTHROPIC
    return RESPONSES if path.endswith("/responses") else CHAT
