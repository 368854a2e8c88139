"""Renew the lease on the rollout servers while the loop lives: an update may take longer than `weights.lease_s`.

Between two pushes no other weights call renews it. Without a heartbeat of the loop the lease expires, and another
trainer may take the servers.
"""

import asyncio
import logging
from collections.abc import Callable

from grpo_proto import ConflictError, ServiceError

from .weight_session import WeightSession

log = logging.getLogger(__name__)

LONGEST_PERIOD_S = 60.0


class Lease:
    """Rank 0's lease. `session` returns the open session, `has_heartbeat` whether the loop lives.

    `taken_over`: how the servers were lost to another trainer; None while they are ours.
    """

    def __init__(
        self, session: Callable[[], WeightSession | None], has_heartbeat: Callable[[], bool], *, lease_s: float
    ):
        self._session, self._has_heartbeat = session, has_heartbeat
        self._period_s = min(lease_s / 4, LONGEST_PERIOD_S)
        self.taken_over: str | None = None

    async def keep(self) -> None:
        """Renew the lease until a server is taken over; runs in the background of the event loop."""
        while self.taken_over is None:
            await asyncio.sleep(self._period_s)
            session = self._session()
            if session is None or not self._has_heartbeat():
                continue
            refusals = await session.renew()
            if self._session() is session:  # a session closed meanwhile is refused rightly
                self.taken_over = next(filter(None, map(_holder, refusals)), None)
        log.error("%s", self.taken_over)


def _holder(error: ServiceError) -> str | None:
    """Why the server is lost to another trainer; None for other refusals: a restarted server has no session at all."""
    if isinstance(error, ConflictError) and error.detail.type == "fenced":
        return f"another trainer has taken over: {error}"
    return None
