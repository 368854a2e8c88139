"""`GET /` and `GET /events`: the live page, one self-contained document, and the events that update it."""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from grpo_proto import ErrorBody
from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import refusal_reply

from .live_events import LiveEvents
from .live_guard import LiveGuard

FOLDER = Path(__file__).parent
STYLES = ("live.css",)
SCRIPTS = ("live_charts.js", "live_completions.js", "live.js")
Responses = dict[int | str, dict[str, Any]]
PRIVATE = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@cache
def page() -> tuple[bytes, str]:
    """Return (document, its Content-Security-Policy): only the style and the script inside it may run."""
    style, script = ("\n".join((FOLDER / name).read_text("utf-8") for name in names) for names in (STYLES, SCRIPTS))
    document = (FOLDER / "live.html").read_text("utf-8").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return document.encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def add_live_page(app: FastAPI, events: LiveEvents, guard: LiveGuard) -> None:
    """Add both routes, which only read."""
    html: Responses = {200: {"content": {"text/html": {}}, "description": "The live page."}, **_REFUSALS}
    stream: Responses = {200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}, **_REFUSALS}
    stream[503] = {"model": ErrorBody, "description": "As many pages are open as the trainer serves."}

    @app.get("/", response_class=Response, responses=html)
    async def show_page(request: Request) -> Response:
        """The run to look at, in a browser."""
        if refused := _refusal(guard, request):
            return refused
        document, policy = page()
        return Response(document, media_type="text/html", headers={**PRIVATE, "Content-Security-Policy": policy})

    @app.get("/events", response_class=Response, responses=stream)
    async def show_events(request: Request) -> Response:
        """What the page shows: `hello` with everything, then an `update` with what has changed, once a second."""
        if refused := _refusal(guard, request):
            return refused
        if events.full:
            open_pages = f"{events.num_clients} pages are open, as many as the trainer serves"
            return refusal_reply(Refusal.busy(503, "busy", open_pages, 10.0, hint="close one of them"), PRIVATE)
        # Proxies such as nginx would buffer events.
        headers = {**PRIVATE, "X-Accel-Buffering": "no"}
        return StreamingResponse(events.stream(), media_type="text/event-stream", headers=headers)


_REFUSALS: Responses = {
    401: {"model": ErrorBody, "description": "Off loopback: the token is missing or wrong."},
    403: {"model": ErrorBody, "description": "On loopback, without a token: asked for under another name."},
}


def _refusal(guard: LiveGuard, request: Request) -> Response | None:
    refused = guard.refusal(host=request.headers.get("host"), headers=request.headers.raw)
    return refusal_reply(refused, PRIVATE) if refused else None
