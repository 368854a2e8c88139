"""Our routes. They translate HTTP into calls of the parts in `service.py` and hold nothing themselves."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from grpo_proto.messages.errors import ErrorBody
from grpo_proto.messages.health import Health
from grpo_proto.messages.rollout import RolloutInfo, RolloutRequest, RolloutResponse
from grpo_proto.messages.weights import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    RenewRequest,
    SessionRequest,
    WeightState,
)
from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import health_reply

from . import __version__, health, metrics
from .parts import Service
from .wire_route import WireRoute


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}


ALWAYS = _errors(400, 401, 413, 415, 422, 500, 503)


def make_router(service: Callable[[], Service], *, heartbeat_timeout_s: float) -> APIRouter:
    """The routes of one server; `service` is asked at each call, since the engine comes after the routes."""
    router = APIRouter(route_class=WireRoute, tags=["grpo-rollout"])

    @router.get("/livez", response_model=Health, responses={503: {"model": Health}})
    async def livez() -> Response:
        """Whether the process and its engine are alive."""
        parts = service()
        alive = health.livez(parts.engine, parts.pushes, heartbeat_timeout_s=heartbeat_timeout_s)
        return health_reply(alive)

    @router.get("/readyz", response_model=Health, responses={503: {"model": Health}})
    async def readyz() -> Response:
        """Whether to send traffic here."""
        parts = service()
        alive = health.livez(parts.engine, parts.pushes, heartbeat_timeout_s=heartbeat_timeout_s)
        return health_reply(health.readyz(alive, parts.pushes))

    @router.get("/info")
    async def info() -> RolloutInfo:
        """What this server is and serves."""
        parts = service()
        return parts.info.info(parts.pushes)

    @router.post("/v1/rollouts", response_model=RolloutResponse, responses=ALWAYS | _errors(409, 429, 504))
    async def rollouts(body: RolloutRequest, request: Request) -> Response:
        """Sample n completions for each prompt. `max_tokens` is capped to what the context leaves to a prompt."""
        disconnected = asyncio.ensure_future(_disconnect(request))
        status = 500
        try:
            content = await service().rollouts.sample(body, disconnected)
            status = 200
        except Refusal as refused:
            status = refused.status
            raise
        finally:
            disconnected.cancel()
            metrics.ROLLOUTS.labels(status).inc()
        return Response(content, media_type="application/json")

    @router.get("/v1/weights")
    async def weights() -> WeightState:
        """What is served."""
        return service().pushes.message()

    @router.post("/v1/weights/session", responses=ALWAYS | _errors(409, 504))
    async def open_session(body: SessionRequest) -> WeightState:
        """Join a trainer's process group."""
        return await service().pushes.open_session(body)

    @router.delete("/v1/weights/session", responses=ALWAYS | _errors(409))
    async def close_session(body: CloseRequest) -> WeightState:
        """Leave the process group."""
        return await service().pushes.close_session(body)

    @router.post("/v1/weights/renew", responses=ALWAYS | _errors(409))
    async def renew(body: RenewRequest) -> WeightState:
        """Start the lease again. 409: the session is over, `fenced` names who has the server."""
        return service().pushes.renew(body)

    @router.post("/v1/weights/begin", responses=ALWAYS | _errors(409))
    async def begin(body: BeginRequest) -> WeightState:
        """Start a push: when this answers, the workers wait for bucket 0."""
        return await service().pushes.begin(body)

    @router.post("/v1/weights/commit", responses=ALWAYS | _errors(409, 504))
    async def commit(body: CommitRequest) -> WeightState:
        """Verify the push and serve it."""
        return await service().pushes.commit(body)

    @router.post("/v1/weights/abort", responses=ALWAYS | _errors(409))
    async def abort(body: AbortRequest) -> WeightState:
        """Give the push up."""
        return await service().pushes.abort(body)

    return router


async def _disconnect(request: Request) -> None:
    """Returns when the client has gone. The body must have been read."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of our routes alone, without vLLM's."""

    def no_service() -> Service:
        raise AssertionError("this application only describes itself")

    app = FastAPI(title="grpo-rollout", version=__version__)
    app.include_router(make_router(no_service, heartbeat_timeout_s=0.0))
    return app.openapi()
