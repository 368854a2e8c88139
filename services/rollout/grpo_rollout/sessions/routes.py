"""The routes of sessions for their trainer: translate HTTP into calls of the parts. The routes hold no state."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

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

from ..wire_route import WireRoute
from .forest import Turn
from .model_routes import allowed as allowed_for
from .model_routes import is_retry, model_routes, while_connected
from .session import Session

if TYPE_CHECKING:
    from .build import SessionParts


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}


ALWAYS = _errors(401, 403, 410, 413, 415, 422, 500, 503)


def add_session_routes(router: APIRouter, get_parts: "Callable[[], SessionParts]") -> None:
    """Add the routes of the trainer, and those of a session's program."""
    router.include_router(_control_routes(get_parts))
    router.include_router(model_routes(get_parts))


def _control_routes(get_parts: "Callable[[], SessionParts]") -> APIRouter:
    router = APIRouter(route_class=WireRoute, prefix="/v1/sessions", responses=NAME_REFUSAL)

    def allowed(session_id: str, request: Request) -> Session:
        return allowed_for(get_parts(), session_id, request, control=True)

    @router.post("", responses=_errors(401, 409, 415, 422, 503))
    async def open_recorded_session(body: OpenSession, request: Request) -> SessionOpened:
        """Open a session. An open session of this id ends: the newest wins, and its keys die."""
        await get_parts().check_sampling(body.sampling)
        return get_parts().sessions.open(body, base_url=str(request.base_url))

    @router.post("/{session_id}/generate", responses=ALWAYS | _errors(400))
    async def generate(session_id: str, body: GenerateTurn, request: Request) -> GeneratedTurn:
        """Sample one turn. 400: a limit of the session, or messages that cannot be rendered."""
        session = allowed(session_id, request)
        turn = await while_connected(request, _generate(get_parts(), session, body, retry=is_retry(request)))
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
        return allowed_for(get_parts(), session_id, request, control=True, uses=False).trajectory()

    @router.delete("/{session_id}", responses=ALWAYS)
    async def delete(session_id: str, request: Request) -> SessionState:
        """Abort the session's turns, and forget it."""
        session = allowed(session_id, request)
        get_parts().sessions.delete(session)
        return session.state()

    return router


async def _generate(parts: "SessionParts", session: Session, body: GenerateTurn, *, retry: bool) -> Turn:
    from .recorded import formed
    from .wanted import Wanted

    parent: Turn | None = None
    if body.parent is not None:
        turns = session.forest.turns
        parent = turns[body.parent] if body.parent < len(turns) else None
        if parent is None or parent.answer is None:
            raise Refusal.invalid("unknown_turn", f"turn {body.parent} of the session has no answer to go on from")
    images: dict[str, str] = {}
    messages = formed([message.model_dump() for message in body.messages or []], images)
    tools = body.tools if body.tools is not None or parent is None else session.forest.tools[parent.tools_key]
    wanted = Wanted(
        messages=messages,
        images=images,
        tools=tools or None,
        token_ids=body.token_ids,
        parent=parent,
        max_tokens=body.max_tokens,
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
