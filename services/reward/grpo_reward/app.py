"""The routes."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_proto import (
    PROTOCOL_VERSION,
    ErrorBody,
    Health,
    RewardInfo,
    RewardList,
    RewardSpec,
    ScoreRequest,
    ScoreResponse,
    ScoreSample,
)
from grpo_proto.server.loopback_names import NAME_REFUSAL
from grpo_proto.server.replies import health_reply, message_reply, refusal_reply
from grpo_proto.totals import score_broken_again

from . import __version__
from .adapters.base import Adapter, PeerRequest, scored
from .adapters.choice import OPTIONS, choose
from .adapters.peers import ADAPTERS
from .config import Settings
from .docs_page import mount_docs
from .executors.base import Executor
from .faults import shown
from .guard import COUNTED_ROUTES, Admission, ClientGone, Guard, Place
from .metrics import Metrics
from .reading import Reader, collector_waits
from .refusal import Refusal, nearest, shutting_down
from .scoring import Scoring
from .tracing import Tracing

log = logging.getLogger("grpo_reward")

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 408, 413, 415, 422, 429, 500, 503)
}
SCORES_PER_SAMPLE = 64
"""Of `--max-samples`: the most scores in one request."""
SCORING, PEERS, STATE = TAGS = ("Scoring", "Routes of other trainers", "State")
BodyT = TypeVar("BodyT", bound=BaseModel)
REQUEST_FIELDS = {*ScoreRequest.model_fields, *ScoreSample.model_fields, *RewardSpec.model_fields}


def create_app(
    settings: Settings,
    executor: Executor,
    metrics: Metrics,
    scoring: Scoring,
    tracing: Tracing | None = None,
    *,
    tokens: Sequence[str],
) -> FastAPI:
    """The application; requests carry one of `tokens`, if there are any. Its executor is started by whoever made it."""
    app = FastAPI(
        title="grpo-reward",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=NAME_REFUSAL,
    )
    admission = Admission(
        max_requests=settings.max_pending_requests,
        max_body_bytes=settings.max_body_mib * 2**20,
        body_timeout_s=settings.body_timeout_s,
    )
    traces = tracing or Tracing(None)
    metrics.watch_workers(lambda: 0 if executor.problem else executor.workers)

    @app.get("/livez", tags=[STATE], summary="Does it live?", response_model=Health, responses={503: {"model": Health}})
    async def livez() -> Response:
        """200 while the process answers and its workers can be replaced."""
        return health_reply(Health.unless(executor.failed))

    @app.get(
        "/readyz", tags=[STATE], summary="Can it score?", response_model=Health, responses={503: {"model": Health}}
    )
    async def readyz() -> Response:
        """200 while there are workers and the server is not about to end."""
        return health_reply(Health.unless("the server ends" if scoring.draining else executor.problem))

    @app.get("/info", tags=[STATE], summary="Versions and rewards", response_model=RewardInfo)
    async def info() -> Response:
        return message_reply(
            RewardInfo(
                version=__version__,
                protocol_version=PROTOCOL_VERSION,
                rewards={name: reward.description.code_hash for name, reward in executor.rewards.items()},
                workers=executor.workers,
            )
        )

    @app.get(
        "/metrics",
        tags=[STATE],
        summary="For Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def show_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get(
        "/v1/rewards",
        tags=[SCORING],
        summary="What can be computed",
        response_model=RewardList,
        responses={401: {"model": ErrorBody}},
    )
    async def rewards() -> Response:
        """What can be computed: documentation, params with defaults, columns."""
        return message_reply(RewardList(rewards=[reward.description for reward in executor.rewards.values()]))

    async def message_of(request: Request, reader: Reader[BodyT], place: Place) -> BodyT:
        body = await place.read_json(request.headers.get, request.receive)
        async with admission.turn_to_parse(len(body)):
            return reader.read(body)

    async def answer_to(
        request: Request, reader: Reader[BodyT], answer: Callable[[BodyT], Awaitable[bytes]]
    ) -> Response:
        """What all routes that score have in common: a place, the limits of a body, its check, the time it took."""
        with admission.place() as place, metrics.request_seconds.time():
            message = await message_of(request, reader, place)
            return Response(await answer(message), media_type="application/json")

    async def answer_of(request: Request, message: ScoreRequest) -> ScoreResponse:
        header = request.headers.get("traceparent")
        with traces.request(message, route=request.url.path, header=header) as answer:
            answer.response = found = await _unless_gone(request, scoring, message)
        return found

    def within_limits(message: ScoreRequest) -> ScoreRequest:
        """`message`, with time limits that the client did not name cut to this server's."""
        capped: dict[str, float] = {}
        for name, seconds in (("timeout_s", message.timeout_s), ("deadline_s", message.deadline_s)):
            if seconds <= settings.max_timeout_s:
                continue
            if name not in message.model_fields_set:
                capped[name] = settings.max_timeout_s
            else:
                raise Refusal(
                    422,
                    "invalid_value",
                    f"{name} is {seconds:g}; this server takes {settings.max_timeout_s:g} at most",
                    hint="ask for less, or start the server with a larger --max-timeout-s",
                )
        num_scores, limit = len(message.samples) * len(message.rewards), SCORES_PER_SAMPLE * settings.max_samples
        if num_scores > limit:
            raise Refusal(
                413,
                "too_many_scores",
                f"{len(message.samples)} samples with {len(message.rewards)} rewards are {num_scores} scores; "
                f"the limit is {limit}",
                hint="send several requests, or start the server with a larger --max-samples",
            )
        return message.model_copy(update=capped) if capped else message

    score_reader = Reader(ScoreRequest, REQUEST_FIELDS, samples="samples", max_samples=settings.max_samples)

    @app.post(
        "/v1/score",
        tags=[SCORING],
        summary="Score samples",
        response_model=ScoreResponse,
        responses=ERRORS,
        openapi_extra=_body_of(ScoreRequest, SCORE_EXAMPLE),
    )
    async def score(request: Request) -> Response:
        """Score every sample with every reward. One result for every sample, in their order.

        A score may have 64 KiB of `log` and 100 `metrics`; those of one answer together 32 MiB, counted about as they
        stand in memory, and those of all answers at once 256 MiB. Beyond, a score comes without them, and its `detail`
        says so. More samples than `--max-samples`, or 64 times as many scores, are refused with 413. A key that stands
        twice in an object of the request counts as it stands last.
        """

        async def answer(message: ScoreRequest) -> bytes:
            found = await answer_of(request, within_limits(message))
            # A score without detail, log and metrics says nothing of them: most of an answer would be nulls.
            return found.model_dump_json(exclude_defaults=True).encode()

        return await answer_to(request, score_reader, answer)

    def mount(adapter: Adapter[Any]) -> None:
        fields = adapter.body.model_fields
        reader = Reader(adapter.body, fields, samples=adapter.many, max_samples=settings.max_samples)

        @app.post(
            adapter.path, tags=[PEERS], summary=adapter.summary, response_model=adapter.answers_with, responses=ERRORS,
            name=adapter.path.strip("/"), openapi_extra=_adapted(adapter),
        )  # fmt: skip
        async def adapted(request: Request) -> Response:
            async def answer(body: PeerRequest) -> bytes:
                query = request.query_params.multi_items()
                choice = choose(query, settings.adapter_rewards, executor.rewards, adapter.options)
                with collector_waits():
                    message = choice.score_request(adapter.samples(body, choice))
                message = within_limits(message)
                found = await answer_of(request, message)
                left_s = message.deadline_s - found.elapsed_s
                found = await score_broken_again(
                    message, found, functools.partial(answer_of, request), retry_for_s=left_s
                )
                with collector_waits():
                    # What is sent back may hold NaN, which Python's JSON has and no other.
                    return to_json(adapter.answer(body, choice, scored(found, choice)), inf_nan_mode="null")

            return await answer_to(request, reader, answer)

    for adapter in ADAPTERS:
        mount(adapter)
    seed_reader = Reader(PeerRequest, (), samples=None, max_samples=settings.max_samples)

    @app.post(
        "/seed_session", tags=[PEERS], summary="Prepare a task", responses=ERRORS, openapi_extra=_body_of(None, {})
    )
    async def seed_session(request: Request) -> dict[str, Any]:
        """NeMo-Gym calls it before each task. Rewards remember nothing of a task, so there is nothing to prepare."""
        with admission.place() as place:
            await message_of(request, seed_reader, place)
        return {}

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return refusal_reply(refusal)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        names = {404: "not_found", 405: "method_not_allowed"}
        path = shown(request.url.path)
        messages = {404: f"there is no route {path}", 405: f"not {request.method} {path}"}
        allowed = (error.headers or {}).get("Allow", "another method")
        refusal = Refusal(
            error.status_code,
            names.get(error.status_code, "refused"),
            messages.get(error.status_code, str(error.detail)),
            hint={404: nearest(request.url.path, [*COUNTED_ROUTES, "/docs"]), 405: f"it takes {allowed}"}.get(
                error.status_code
            ),
            headers=dict(error.headers or {}),
        )
        return refusal_reply(refusal)

    @app.exception_handler(ClientGone)
    async def gone(*_: object) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal_reply(Refusal(500, "internal", f"{type(error).__name__} in the server; its log says more"))

    app.add_middleware(AnswersWhenCutOff)
    app.add_middleware(Guard, tokens=tokens, metrics=metrics)
    mount_docs(app)
    app.openapi = lambda: openapi_of(app)  # type: ignore[method-assign]
    document = functools.cache(lambda: to_json(app.openapi()))  # 60 KB: each time anew it is milliseconds of the loop

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(document(), media_type="application/json")

    return app


class AnswersWhenCutOff:
    """A request that is cancelled because the server ends gets the refusal that others get then.

    That happens at a second SIGINT, and at the end of the grace period to a body that is still on its way; uvicorn
    takes it for a fault of ours, and its own answer to that is a text.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except asyncio.CancelledError:
            if started:
                raise  # half an answer: the connection is closed
            await refusal_reply(shutting_down())(scope, receive, send)


async def _unless_gone(request: Request, scoring: Scoring, message: ScoreRequest) -> ScoreResponse:
    """Score, but stop when the client goes away: its workers are for others then."""
    work = asyncio.create_task(scoring.score(message))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return work.result()
    finally:
        gone.cancel()
        work.cancel()
        await asyncio.gather(gone, work, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


SCORE_EXAMPLE = {
    "rewards": [{"name": "countdown"}, {"name": "format", "weight": 0.1, "params": {"require_think": False}}],
    "samples": [{"completion": "<answer>44 + 19 + 35</answer>", "columns": {"nums": [44, 19, 35], "target": 98}}],
}


def _body_of(model: type[BaseModel] | None, example: dict[str, Any]) -> dict[str, Any]:
    """The request body for the OpenAPI document: the routes read it themselves, so FastAPI does not know it."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"} if model else {"type": "object"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


def _adapted(adapter: Adapter[Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in {**OPTIONS, **adapter.options}.items()
    ]
    parameters[0]["example"] = adapter.example_rewards
    return {"parameters": parameters, **_body_of(adapter.body, adapter.example)}


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document and the schemas of the bodies that the routes read themselves."""
    tags = [{"name": name} for name in TAGS]
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, tags=tags)
    schemas = document["components"]["schemas"]
    bodies: list[type[BaseModel]] = [ScoreRequest, *(adapter.body for adapter in ADAPTERS)]
    for model in bodies:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document
