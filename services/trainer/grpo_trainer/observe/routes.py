"""The routes of the trainer. They only read, so they need no token, except the live page off loopback (live_guard.py).
A server without a token answers under loopback names only.

`python -m grpo_trainer.observe.routes > services/trainer/openapi.json` renews the committed document.
"""

import json
import logging
import sys

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from grpo_proto import PROTOCOL_VERSION, Health, TrainerInfo
from grpo_proto.server.loopback_names import NAME_REFUSAL
from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import health_reply, message_reply, refusal_reply

from .. import __version__
from .live_events import LiveEvents
from .live_guard import LiveGuard
from .live_page import add_live_page
from .live_view import LiveView
from .prometheus import RunMetrics
from .run_status import RunStatus

log = logging.getLogger(__name__)


def create_app(status: RunStatus, events: LiveEvents, guard: LiveGuard) -> FastAPI:
    """Return the application, which answers from memory and never waits for the loop."""
    app = FastAPI(
        title="grpo-trainer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=NAME_REFUSAL,
    )
    metrics = RunMetrics(status)

    @app.get("/livez", response_model=Health, responses={503: {"model": Health}})
    async def livez() -> Response:
        """200 while the loop's heartbeat is younger than its bound and its background threads live. While the run
        starts, each silent part, such as loading the model, has a limit in place of the heartbeat."""
        return health_reply(Health.unless(status.problem()))

    @app.get("/readyz", response_model=Health, responses={503: {"model": Health}})
    async def readyz() -> Response:
        """200 while the run is alive and trains: from its first push to its end. Before, it says what it waits for."""
        state = status.snapshot()
        waits_for = str(state.start) if state.start else f"not training: {state.stage}"
        return health_reply(Health.unless(status.problem() or (None if state.ready else waits_for)))

    @app.get("/info", response_model=TrainerInfo)
    async def info() -> Response:
        """What runs, and how far it is."""
        state = status.snapshot()
        return message_reply(
            TrainerInfo(
                version=__version__,
                protocol_version=PROTOCOL_VERSION,
                run=state.run,
                step=state.step,
                max_steps=state.max_steps,
                policy_version=state.policy_version,
                stage=state.stage,
            )
        )

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def show_metrics() -> Response:
        """Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    add_live_page(app, events, guard)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        names = {404: "not_found", 405: "method_not_allowed"}
        messages = {404: f"there is no route {request.url.path}", 405: f"not {request.method} {request.url.path}"}
        refusal = Refusal(
            error.status_code,
            names.get(error.status_code, "refused"),
            messages.get(error.status_code, str(error.detail)),
            hint="the routes are GET / (the live page), /events, /livez, /readyz, /info and /metrics",
            headers=dict(error.headers or {}),
        )
        return refusal_reply(refusal)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal_reply(
            Refusal(500, "internal", f"{type(error).__name__} in the trainer; its log has the stack trace")
        )

    return app


def openapi_text() -> str:
    """Return the OpenAPI document of these routes, as committed."""
    status = RunStatus("example", max_steps=1, heartbeat_bound_s=1.0)
    app = create_app(status, LiveEvents(LiveView(status)), LiveGuard("127.0.0.1", ()))
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(openapi_text())
