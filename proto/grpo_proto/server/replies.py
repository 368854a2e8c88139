"""A message, a refusal or a health report as starlette's Response. Needs starlette."""

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response

from ..messages.health import Health
from .refusal import Refusal


def message_reply(message: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(message.model_dump_json(), status, headers, media_type="application/json")


def refusal_reply(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    """`headers` are the headers of every answer of a route; the refusal's own take precedence."""
    return message_reply(refusal.body, refusal.status, {**(headers or {}), **refusal.headers})


def health_reply(health: Health) -> Response:
    """200 or 503 with the same body."""
    return message_reply(health, 200 if health.ok else 503)
