"""The routes of sessions: translate HTTP into calls of the parts. The routes hold no state."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute

from grpo_proto.messages.errors import ErrorBody
from grpo_proto.messages.sessions import (
    CloseSession,
    GeneratedTurn,
    GenerateTurn,
    OpenSession,
    SessionOpened,
    SessionReward,
    SessionState,
    Trajectory,
    TurnUsage,
)
from grpo_proto.server.loopback_names import NAME_REFUSAL
from grpo_proto.server.refusal import Refusal

from ..cut_off import client_gone
from ..engine import EngineDiedError
from ..wire_route import WireRoute, read_body
from .chat_form import BadMessagesError, chat_message
from .forest import Turn
from .session import Session

if TYPE_CHECKING:
    from .build import SessionParts

HEARTBEAT_S = 15.0
"""How often a stream carries a comment while its turn samples or waits for weights."""
RETRY_HEADER = "x-stainless-retry-count"


class ModelRoute(APIRoute):
    """A route that programs call by OpenAI's SDK: its errors have OpenAI's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_model_request(request: Request) -> Response:
            try:
                if request.method == "POST":
                    await read_body(request)
                return await handle(request)
            except Refusal as refused:
                refusal = refused
            except EngineDiedError as error:
                refusal = Refusal(503, "engine_died", str(error), retryable=True)
            from .chat import openai_error

            return Response(openai_error(refusal), refusal.status, refusal.headers, media_type="application/json")

        return handle_model_request


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}


ALWAYS = _errors(401, 403, 410, 413, 415, 422, 500, 503)


def add_session_routes(router: APIRouter, get_parts: "Callable[[], SessionParts]") -> None:
    """Add the routes of the trainer, and those of a session's program."""
    router.include_router(_control_routes(get_parts))
    router.include_router(_model_routes(get_parts))


def _control_routes(get_parts: "Callable[[], SessionParts]") -> APIRouter:
    router = APIRouter(route_class=WireRoute, prefix="/v1/sessions", responses=NAME_REFUSAL)

    def allowed(session_id: str, request: Request) -> Session:
        return _allowed(get_parts(), session_id, request, control=True)

    @router.post("", responses=_errors(401, 409, 415, 422, 503))
    async def open_recorded_session(body: OpenSession, request: Request) -> SessionOpened:
        """Open a session. An open session of this id ends: the newest wins, and its keys die."""
        return get_parts().sessions.open(body, base_url=str(request.base_url))

    @router.post("/{session_id}/generate", responses=ALWAYS | _errors(400))
    async def generate(session_id: str, body: GenerateTurn, request: Request) -> GeneratedTurn:
        """Sample one turn. 400: a limit of the session, or messages that cannot be rendered."""
        session = allowed(session_id, request)
        turn = await _while_connected(request, _generate(get_parts(), session, body, retry=_is_retry(request)))
        turn.delivered = True
        return generated(turn)

    @router.post("/{session_id}/reward", responses=ALWAYS)
    async def reward(session_id: str, body: SessionReward, request: Request) -> SessionState:
        """Record a reward. The same name and turn replaces."""
        session = allowed(session_id, request)
        session.reward(body)
        return session.state()

    @router.post("/{session_id}/close", responses=ALWAYS)
    async def close(session_id: str, body: CloseSession, request: Request) -> SessionState:
        """End the session. The server's own reason outranks this one."""
        session = allowed(session_id, request)
        session.close(body)
        return session.state()

    @router.get("/{session_id}/trajectory", responses=ALWAYS)
    async def trajectory(session_id: str, request: Request) -> Trajectory:
        """Return all that the session has recorded. Reading it does not put off the end by idle time."""
        return _allowed(get_parts(), session_id, request, control=True, uses=False).trajectory()

    @router.delete("/{session_id}", responses=ALWAYS)
    async def delete(session_id: str, request: Request) -> SessionState:
        """Abort the session's turns, and forget it."""
        session = allowed(session_id, request)
        get_parts().sessions.delete(session)
        return session.state()

    return router


def _model_routes(get_parts: "Callable[[], SessionParts]") -> APIRouter:
    errors: dict[int | str, dict[str, Any]] = {code: {"description": "In OpenAI's form"} for code in ("4XX", "5XX")}
    router = APIRouter(route_class=ModelRoute, prefix="/sessions/{session_id}/v1", responses=errors)

    @router.post("/chat/completions", response_model=None)
    async def session_chat(session_id: str, request: Request) -> Response:
        """OpenAI's chat completions. Sampling is the session's, any `model` is accepted; errors have OpenAI's form."""
        parts = get_parts()
        session = _allowed(parts, session_id, request, control=False)
        body = _object(await request.body())
        answered = parts.chat.answer(session, body, retry=_is_retry(request))
        answer, asked = await _while_connected(request, answered)
        if isinstance(answer, AsyncGenerator):
            from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive

            stream = with_sse_keep_alive(_then(answer, asked.delivered), HEARTBEAT_S)
            return StreamingResponse(stream, media_type="text/event-stream")
        if (error := getattr(answer, "error", None)) is not None:
            raise Refusal(error.code, str(error.type), error.message)
        asked.delivered()
        return JSONResponse(answer.model_dump())

    @router.get("/models", response_model=None)
    async def session_models(session_id: str, request: Request) -> Response:
        """The served model, in OpenAI's form."""
        parts = get_parts()
        _allowed(parts, session_id, request, control=False)
        model = {"id": parts.chat.served_name, "object": "model", "created": 0, "owned_by": "grpo-rollout"}
        return JSONResponse({"object": "list", "data": [model]})

    return router


def _allowed(parts: "SessionParts", session_id: str, request: Request, *, control: bool, uses: bool = True) -> Session:
    """Return the session of a request. Raises Refusal: 410 unknown, 401 or 403 the wrong key."""
    session = parts.sessions.find(session_id)
    session.keys.check(request.headers, parts.tokens, control=control)
    if uses:
        parts.sessions.used(session)
    return session


def _is_retry(request: Request) -> bool:
    count = request.headers.get(RETRY_HEADER, "0")
    return count.isdecimal() and int(count) > 0


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Refusal(400, "malformed_json", f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refusal(400, "malformed_json", "the body is no JSON object")
    return found


async def _generate(parts: "SessionParts", session: Session, body: GenerateTurn, *, retry: bool) -> Turn:
    from .turns import Wanted

    parent: Turn | None = None
    if body.parent is not None:
        turns = session.forest.turns
        parent = turns[body.parent] if body.parent < len(turns) else None
        if parent is None or parent.answer is None:
            raise Refusal.invalid("unknown_turn", f"turn {body.parent} of the session has no answer to go on from")
    try:
        messages = [chat_message(message.model_dump(), number) for number, message in enumerate(body.messages or [])]
    except BadMessagesError as error:
        raise Refusal(400, "invalid_messages", str(error)) from error
    tools = body.tools if body.tools is not None or parent is None else parent.tools
    wanted = Wanted(
        messages=messages, tools=tools or None, token_ids=body.token_ids, parent=parent, max_tokens=body.max_tokens
    )
    running = await parts.turns.start(session, wanted, retry=retry)
    return await parts.turns.answer(session, running)


def generated(turn: Turn) -> GeneratedTurn:
    message = {name: value for name, value in (turn.message or {}).items() if name != "tool_calls"}
    token_ids = turn.token_ids.tolist()
    return GeneratedTurn(
        turn=turn.number,
        segment=turn.segment.index,
        message=message | ({"tool_calls": turn.calls} if turn.calls else {}),
        text=turn.text,
        token_ids=token_ids,
        logprobs=turn.logprobs.tolist(),
        versions=turn.versions,
        finish_reason=turn.finish_reason or "error",
        usage=TurnUsage(prompt_tokens=turn.start, completion_tokens=len(token_ids)),
    )


async def _while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """Await `answer` until the client disconnects. Raises Refusal (499) then."""
    work = asyncio.ensure_future(answer)
    gone_away = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((work, gone_away), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise client_gone()
    finally:
        work.cancel()
        gone_away.cancel()


async def _disconnect(request: Request) -> None:
    """Wait until the client has disconnected. The body must have been read."""
    with suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


async def _then(stream: AsyncGenerator[str, None], delivered: Callable[[], None]) -> AsyncGenerator[str, None]:
    """Pass a stream on, and call `delivered` when the client has taken all of it."""
    async for chunk in stream:
        yield chunk
    delivered()
