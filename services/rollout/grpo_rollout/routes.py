"""Translate HTTP into calls of the parts (`parts.py`). The routes hold no state."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request, Response
from prometheus_client import Counter

from grpo_proto.messages.errors import ErrorBody
from grpo_proto.messages.health import Health
from grpo_proto.messages.logprobs import LogprobsRequest, LogprobsResponse
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
from grpo_proto.server.loopback_names import NAME_REFUSAL
from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import health_reply

from . import __version__, health, metrics, readiness
from .parts import Parts
from .sessions.routes import add_session_routes
from .wire_route import WireRoute


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}


WEIGHTS_WAIT_S = 600.0
"""How long a trainer that loads its model, or is in the middle of a step, may take to open a session."""
WaitSeconds = Annotated[float, Query(ge=0, allow_inf_nan=False)]

ALWAYS = _errors(400, 401, 413, 415, 422, 500, 503)


def make_router(get_parts: Callable[[], Parts], *, heartbeat_timeout_s: float) -> APIRouter:
    """Make the routes of one server. Each call fetches the parts, because vLLM starts the engine after the routes."""
    router = APIRouter(route_class=WireRoute, tags=["grpo-rollout"], responses=NAME_REFUSAL)

    @router.get("/livez", response_model=Health, responses={503: {"model": Health}})
    async def livez() -> Response:
        """Report whether the process and its engine are alive."""
        parts = get_parts()
        alive = health.livez(parts.engine, parts.pushes, heartbeat_timeout_s=heartbeat_timeout_s)
        return health_reply(alive)

    @router.get("/readyz", response_model=Health, responses={503: {"model": Health}, 422: {"model": ErrorBody}})
    async def readyz(weights: Literal["any", "required"] = "any", wait_s: WaitSeconds = WEIGHTS_WAIT_S) -> Response:
        """Report whether this server should get traffic: once a trainer has joined, when it has the trainer's weights.

        With `weights=required` it is not ready without those, unless nobody has opened a weight session within `wait_s`
        seconds of the start: then it is, with the weights from disk, until a trainer joins.
        """
        parts = get_parts()
        alive = health.livez(parts.engine, parts.pushes, heartbeat_timeout_s=heartbeat_timeout_s)
        left_s = parts.started_s + wait_s - time.monotonic() if weights == "required" else None
        return health_reply(readiness.readyz(alive, parts.pushes.weights, trainer_left_s=left_s))

    @router.get("/info")
    async def info() -> RolloutInfo:
        """Report what this server is and which model it serves."""
        parts = get_parts()
        return parts.info.info(parts.pushes, parts.sessions.info())

    @router.post("/v1/rollouts", response_model=RolloutResponse, responses=ALWAYS | _errors(409, 429, 504))
    async def rollouts(body: RolloutRequest, request: Request) -> Response:
        """Sample n completions for each prompt. `max_tokens` is capped to what a prompt leaves of the context."""
        return await _while_connected(request, partial(get_parts().rollouts.sample, body), metrics.ROLLOUTS)

    @router.post("/v1/logprobs", response_model=LogprobsResponse, responses=ALWAYS | _errors(429, 504))
    async def logprobs(body: LogprobsRequest, request: Request) -> Response:
        """Return the logprob of each token after the prompt, at temperature 1, under the weights that are served."""
        return await _while_connected(request, partial(get_parts().logprobs.score, body), metrics.LOGPROBS)

    @router.get("/v1/weights")
    async def weights() -> WeightState:
        """Report the state and the version of the weights."""
        return get_parts().pushes.message()

    @router.post("/v1/weights/session", responses=ALWAYS | _errors(409, 504))
    async def open_session(body: SessionRequest) -> WeightState:
        """Join a trainer's process group."""
        return await get_parts().pushes.open_session(body)

    @router.delete("/v1/weights/session", responses=ALWAYS | _errors(409))
    async def close_session(body: CloseRequest) -> WeightState:
        """Leave the process group."""
        return await get_parts().pushes.close_session(body)

    @router.post("/v1/weights/renew", responses=ALWAYS | _errors(409))
    async def renew(body: RenewRequest) -> WeightState:
        """Start the lease again. 409: the session has ended; `fenced` names the trainer that has the server."""
        return get_parts().pushes.renew(body)

    @router.post("/v1/weights/begin", responses=ALWAYS | _errors(409, 429))
    async def begin(body: BeginRequest) -> WeightState:
        """Start a push. After the answer, the workers take bucket 0. 429: too many adapter versions are in use."""
        return await get_parts().pushes.begin(body)

    @router.post("/v1/weights/commit", responses=ALWAYS | _errors(409, 504))
    async def commit(body: CommitRequest) -> WeightState:
        """Verify the push and serve its weights."""
        return await get_parts().pushes.commit(body)

    @router.post("/v1/weights/abort", responses=ALWAYS | _errors(409))
    async def abort(body: AbortRequest) -> WeightState:
        """Abort the push under way. The weights are stale afterwards, unless an adapter was pushed."""
        return await get_parts().pushes.abort(body)

    add_session_routes(router, lambda: get_parts().sessions)
    return router


async def _while_connected(
    request: Request, answer: Callable[[asyncio.Future[Any]], Coroutine[Any, Any, bytes]], counter: Counter
) -> Response:
    """Await the body that `answer` encodes, given the client's disconnect; count the request by its status."""
    disconnected = asyncio.ensure_future(_disconnect(request))
    status = 500
    try:
        content = await answer(disconnected)
        status = 200
    except Refusal as refused:
        status = refused.status
        raise
    finally:
        disconnected.cancel()
        counter.labels(status).inc()
    return Response(content, media_type="application/json")


async def _disconnect(request: Request) -> None:
    """Wait until the client has disconnected. The body must have been read."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def openapi_document() -> dict[str, Any]:
    """Build the OpenAPI document of our routes, without vLLM's routes."""

    def no_parts() -> Parts:
        raise AssertionError("this application only describes itself")

    app = FastAPI(title="grpo-rollout", version=__version__)
    app.include_router(make_router(no_parts, heartbeat_timeout_s=0.0))
    return app.openapi()
