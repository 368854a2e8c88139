"""Client of a rollout server's sessions: open an episode's session, sample its turns, read its record.

Every call may be retried: a session opened again replaces itself, a turn asked for again joins the one that runs or
gets its recorded answer, and rewards, close and DELETE have the same effect twice.
"""

from typing import Any

from ..messages.errors import DataError
from ..messages.sessions import (
    CloseSession,
    GeneratedTurn,
    GenerateTurn,
    OpenSession,
    SessionOpened,
    SessionReward,
    SessionState,
    Trajectory,
)
from .clients import BYTES_PER_TOKEN, MAX_ANSWER_BYTES, ServiceClient

CALL_S = 30.0
"""Limit in seconds for a call that the server answers from memory."""
TURN_S = 600.0
"""Limit in seconds for one try of a turn: above the time for which a server holds it while weights load."""


class SessionsClient(ServiceClient):
    """Opens sessions on one rollout server."""

    async def open(self, request: OpenSession, *, retry_for_s: float = 0.0) -> "SessionClient":
        """Open a session; one of the same id ends, and its keys die.

        Raises ConflictError when the server's weights are another trainer's, DataError for a context that the model
        does not have.
        """
        opened = await self._retry(retry_for_s, "POST", "/v1/sessions", request, SessionOpened, CALL_S)
        return SessionClient(self, opened)


class SessionClient:
    """One open session. `opened` has the URLs and the key for a program.

    All calls raise DataError with type `session_gone` (410) once the server has forgotten or ended the session.
    """

    def __init__(self, server: SessionsClient, opened: SessionOpened):
        self.server, self.opened = server, opened
        self._path = f"/v1/sessions/{opened.session_id}"

    async def generate(
        self, request: GenerateTurn, *, timeout_s: float = TURN_S, retry_for_s: float = 0.0
    ) -> GeneratedTurn:
        """Sample one turn; waits while weights load.

        Raises DataError: type `session_limit` when a limit has ended the session, `context_length_exceeded` when the
        prompt leaves no room (the session goes on), `invalid_messages`.
        """
        turn: GeneratedTurn = await self._call("POST", "generate", request, GeneratedTurn, timeout_s, retry_for_s)
        return turn

    async def reward(self, request: SessionReward, *, retry_for_s: float = 0.0) -> SessionState:
        """Record a reward in the session. The same name and turn replaces."""
        state: SessionState = await self._call("POST", "reward", request, SessionState, CALL_S, retry_for_s)
        return state

    async def close(self, request: CloseSession, *, retry_for_s: float = 0.0) -> SessionState:
        """End the session; return how it ended: the server's own reason outranks the one sent."""
        state: SessionState = await self._call("POST", "close", request, SessionState, CALL_S, retry_for_s)
        return state

    async def trajectory(self, *, num_tokens: int = 0, retry_for_s: float = 0.0) -> Trajectory:
        """Return the record, of a session that has ended too. `num_tokens`: about how many it may hold."""
        max_bytes = MAX_ANSWER_BYTES + BYTES_PER_TOKEN * num_tokens
        found: Trajectory = await self._call("GET", "trajectory", None, Trajectory, CALL_S, retry_for_s, max_bytes)
        return found

    async def delete(self, *, retry_for_s: float = 0.0) -> None:
        """Abort and forget the session. One that is gone already is no error."""
        try:
            await self._call("DELETE", "", None, SessionState, CALL_S, retry_for_s)
        except DataError as error:
            if error.status != 410:
                raise

    async def _call(
        self,
        method: str,
        route: str,
        body: Any,
        answer: Any,
        timeout_s: float,
        retry_for_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Any:
        path = f"{self._path}/{route}" if route else self._path
        key = self.opened.control_key
        return await self.server._retry(retry_for_s, method, path, body, answer, timeout_s, max_bytes, key=key)
