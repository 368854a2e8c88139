"""The routes that programs call: OpenAI's chat completions and Responses, Anthropic's Messages. They hold no state."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute

from grpo_proto.server.refusal import Refusal

from ..cut_off import client_gone
from ..engine import EngineDiedError
from ..wire_route import check_content_type
from .api_errors import ErrorForm, form_of
from .session import Session

if TYPE_CHECKING:
    from .build import SessionParts
    from .recorded import Answer

HEARTBEAT_S = 15.0
"""How often a stream carries a comment while its turn samples or waits for weights."""
SURROGATES = (b"\\ud", b"\\uD", b"\xed")
"""Without one of these a JSON text holds no half of a character."""
RETRY_HEADER = "x-stainless-retry-count"


class ModelRoute(APIRoute):
    """A route that programs call by an SDK: its errors have the form of the SDK's API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_model_request(request: Request) -> Response:
            try:
                if request.method == "POST":
                    check_content_type(request)
                return await handle(request)
            except Refusal as refused:
                refusal = refused
            except EngineDiedError as error:
                refusal = error.refusal
            return JSONResponse(form_of(request.url.path).body(refusal), refusal.status, refusal.headers)

        return handle_model_request


def model_routes(get_parts: "Callable[[], SessionParts]") -> APIRouter:
    errors: dict[int | str, dict[str, Any]] = {code: {"description": "In the API's form"} for code in ("4XX", "5XX")}
    router = APIRouter(route_class=ModelRoute, prefix="/sessions/{session_id}/v1", responses=errors)

    @router.post("/chat/completions", response_model=None)
    async def session_chat(session_id: str, request: Request) -> Response:
        """OpenAI's chat completions. Sampling is the session's, any `model` is accepted; errors have OpenAI's form."""
        return await _answered(get_parts(), get_parts().chat, session_id, request)

    @router.post("/responses", response_model=None)
    async def session_responses(session_id: str, request: Request) -> Response:
        """OpenAI's Responses. `previous_response_id` names an answer of this session."""
        return await _answered(get_parts(), get_parts().responses, session_id, request)

    @router.post("/messages", response_model=None)
    async def session_messages(session_id: str, request: Request) -> Response:
        """Anthropic's Messages; errors have Anthropic's form."""
        return await _answered(get_parts(), get_parts().messages, session_id, request)

    @router.post("/messages/count_tokens", response_model=None)
    async def session_count_tokens(session_id: str, request: Request) -> Response:
        """How many tokens the prompt of such a request would have in this session."""
        session = allowed(get_parts(), session_id, request, control=False)
        return JSONResponse(await get_parts().messages.count(session, _object(await request.body())))

    @router.get("/models", response_model=None)
    async def session_models(session_id: str, request: Request) -> Response:
        """The served model, in a form that OpenAI's and Anthropic's clients read."""
        parts = get_parts()
        allowed(parts, session_id, request, control=False)
        name = parts.chat.served_name
        model = {"id": name, "object": "model", "created": 0, "owned_by": "grpo-rollout"}
        model |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        pages = {"has_more": False, "first_id": name, "last_id": name}
        return JSONResponse({"object": "list", "data": [model]} | pages)

    return router


def allowed(parts: "SessionParts", session_id: str, request: Request, *, control: bool, uses: bool = True) -> Session:
    """Return the session of a request. Raises Refusal: 410 unknown, 401 or 403 the wrong key."""
    session = parts.sessions.find(session_id)
    session.keys.check(request.headers, parts.tokens, control=control)
    if uses:
        parts.sessions.used(session)
    return session


def is_retry(request: Request) -> bool:
    count = request.headers.get(RETRY_HEADER, "0")
    return count.isdecimal() and int(count) > 0


async def _answered(parts: "SessionParts", api: Any, session_id: str, request: Request) -> Response:
    session = allowed(parts, session_id, request, control=False)
    body = _object(await request.body())
    answer: Answer = await while_connected(request, api.answer(session, body, retry=is_retry(request)))
    if answer.events is not None:
        from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive

        stream = with_sse_keep_alive(_events(answer, answer.events, form_of(request.url.path)), HEARTBEAT_S)
        return StreamingResponse(stream, media_type="text/event-stream")
    answer.asked.delivered()
    return JSONResponse(answer.body)


async def _events(answer: "Answer", events: AsyncGenerator[str, None], form: ErrorForm) -> AsyncGenerator[str, None]:
    """Pass a stream on once its turn is there, or the error in its place; the turn is delivered with the last event."""
    try:
        await answer.asked.turn()
    except Refusal as refused:
        yield form.event(refused)
        return
    except EngineDiedError as error:
        yield form.event(error.refusal)
        return
    async for event in events:
        yield event
    answer.asked.delivered()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
        if any(sign in body for sign in SURROGATES):
            # A program has cut a text inside an emoji. No tokenizer takes the half; what is whole stays whole.
            text = json.dumps(found, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "malformed_json", f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refusal(400, "malformed_json", "the body is no JSON object")
    return found


async def while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
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
