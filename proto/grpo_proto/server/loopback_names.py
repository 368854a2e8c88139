"""Which names a server answers to when it needs no token.

Such a server listens on loopback. A web page can resolve its own name to 127.0.0.1 and have the browser of somebody on
this machine send requests there (DNS rebinding); they carry the page's name as `Host`.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ..api_token import TOKEN_VARIABLE
from ..loopback import is_loopback
from ..messages.errors import ErrorBody
from .refusal import Refusal
from .replies import refusal_reply

UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104 (nothing is bound to them here)
"""Addresses that mean this machine to who calls them, as some clients do by default. No page has them as its name."""

NAME_REFUSAL: dict[int | str, dict[str, Any]] = {
    403: {"model": ErrorBody, "description": "Without a token: called under a name that is not loopback."}
}
"""For the OpenAPI document of every route."""


def host_name(host: str | None) -> str:
    """Return `Host` without its port: `[::1]:8002` → `::1`."""
    host = (host or "").strip()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def name_refusal(headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
    """A 403, unless every `Host` of an ASGI request is a loopback name. A request without `Host` is no browser's."""
    for name, value in headers:
        if name != b"host":
            continue
        called = host_name(value.decode("latin-1"))
        if called not in UNSPECIFIED and not is_loopback(called):
            return Refusal(
                403,
                "foreign_name",
                f"without a token this server answers under a loopback name only, not under {called[:200]}",
                hint=f"call it as 127.0.0.1 or localhost, or start it with {TOKEN_VARIABLE} set",
            )
    return None


class LoopbackNames:
    """ASGI middleware that refuses requests under other names."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        refusal = name_refusal(scope["headers"]) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal_reply(refusal))(scope, receive, send)
