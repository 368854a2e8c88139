"""The sessions of one server: open, find, expire, forget. Each ends by its limits, its idle time, a close, or a drain.

The clock of each stands still while the weights that it wants are not served.
"""

import asyncio
import logging
import secrets
import time
from functools import lru_cache
from typing import Any, Protocol

from grpo_proto.messages.rollout import Sampling
from grpo_proto.messages.sessions import RECORD_KEPT_S, OpenSession, SessionLimits, SessionOpened
from grpo_proto.server.refusal import Refusal

from .. import metrics, weight_state
from ..weight_state import Weights
from .session import End, Session, gone
from .turns import Turns

logger = logging.getLogger("vllm.grpo_rollout.sessions")

TICK_S = 0.25


@lru_cache(maxsize=256)
def _parsed(kind: type[SessionLimits | Sampling], fields: str) -> Any:
    return kind.model_validate_json(fields)


def _shared(request: OpenSession) -> OpenSession:
    """Return the request with limits and sampling that equal ones of other sessions share: a tenth of their memory."""
    shared = {
        "limits": _parsed(SessionLimits, request.limits.model_dump_json()),
        "sampling": _parsed(Sampling, request.sampling.model_dump_json()),
    }
    return request.model_copy(update=shared)


class HasWeights(Protocol):
    weights: Weights


class Sessions:
    """Holds the sessions by id. `start` it inside the event loop."""

    def __init__(self, pushes: HasWeights, *, max_model_len: int, advertise_url: str | None):
        self.pushes, self.max_model_len, self.advertise_url = pushes, max_model_len, advertise_url
        self.turns: Turns | None = None
        self._sessions: dict[str, Session] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    # --- calls ---------------------------------------------------------------------------------------------------

    def open(self, request: OpenSession, *, base_url: str) -> SessionOpened:
        """Raises Refusal: 409 another trainer's weights, 422 a context longer than the model's."""
        if request.weights_session is not None:
            weight_state.require_current(self.pushes.weights, request.weights_session)
        context = request.limits.max_context_tokens or self.max_model_len
        if context > self.max_model_len:
            raise Refusal.invalid(
                "context_too_long", f"max_context_tokens is {context}; the model's context holds {self.max_model_len}"
            )
        if self.turns is not None and self.turns.draining:
            raise Refusal.busy(503, "stopping", "the server is stopping", 1.0)
        session_id = request.session_id or secrets.token_hex(12)
        if (older := self._sessions.pop(session_id, None)) is not None:
            older.finish(End("failed", "infrastructure", "a newer session has this id"))
        session = Session(
            session_id,
            _shared(request),
            context,
            weights_session=request.weights_session,
            on_end=self._ended,
        )
        self._sessions[session_id] = session
        metrics.SESSIONS.set(self.num_open)
        url = (self.advertise_url or base_url).rstrip("/")
        return SessionOpened(
            session_id=session_id,
            openai_base_url=f"{url}/sessions/{session_id}/v1",
            anthropic_base_url=f"{url}/sessions/{session_id}",
            api_key=session.keys.api_key,
            control_key=session.keys.control_key,
        )

    def find(self, session_id: str) -> Session:
        """Raises Refusal (410) for an id that this process does not know."""
        session = self._sessions.get(session_id)
        if session is None:
            raise gone(session_id, "is not known here: it was deleted, forgotten, or the server has restarted")
        self._check_weights_session(session)
        return session

    def used(self, session: Session) -> None:
        session.idle_for_s = 0.0

    def delete(self, session: Session) -> None:
        """Abort and forget."""
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        session.finish(End("failed", "infrastructure", "deleted"))
        metrics.SESSIONS.set(self.num_open)

    @property
    def num_open(self) -> int:
        return sum(session.end is None for session in self._sessions.values())

    # --- weights -------------------------------------------------------------------------------------------------

    def serves(self, session: Session) -> bool:
        """Return whether the weights of a session can be sampled from now; requests wait while they cannot."""
        weights = self.pushes.weights
        if not weights.serves or weights.state == "loading":
            return False
        if session.weights_session is None:
            return True
        if not weights.are_of(session.weights_session):
            return False
        return weights.version >= (session.request.min_version or 0)

    def _check_weights_session(self, session: Session) -> None:
        wanted, holds = session.weights_session, self.pushes.weights.session
        if wanted is not None and not self.pushes.weights.is_current(wanted):
            why = f"another has the server: {holds}" if holds is not None else "its trainer has left"
            session.finish(End("failed", "infrastructure", f"weights session {wanted} is over; {why}"))

    # --- time ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Advance the clocks, and end what its time is up for."""
        before_s = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            elapsed_s, before_s = now_s - before_s, now_s
            for session in list(self._sessions.values()):
                try:
                    self._tick(session, now_s, elapsed_s)
                except Exception:
                    # One session's fault must not stop the clock of all others.
                    logger.exception("session %s: cannot be watched", session.session_id)

    def _tick(self, session: Session, now_s: float, elapsed_s: float) -> None:
        self._check_weights_session(session)
        if session.end is None and self.serves(session):
            session.pass_time(elapsed_s)
        if session.ended_at_s is not None and now_s - session.ended_at_s >= RECORD_KEPT_S:
            self._sessions.pop(session.session_id, None)

    def _ended(self, session: Session) -> None:
        session.ended_at_s = time.monotonic()
        metrics.SESSIONS.set(self.num_open)
        if self.turns is not None:
            for running in list(session.running.values()):
                self.turns.stop(running)

    def drain(self) -> None:
        """End all sessions: the server stops. What they have sampled stays in their records until it has stopped."""
        if self.turns is not None:
            self.turns.draining = True
        for session in list(self._sessions.values()):
            session.finish(End("failed", "infrastructure", "the server stops", http_status=503))
