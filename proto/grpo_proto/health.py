"""The answers of `GET /livez` and `GET /readyz`."""

from .base import Response


class Health(Response):
    """Any service → a probe. 200 when `ok`, else 503."""

    ok: bool
    detail: str | None = None
