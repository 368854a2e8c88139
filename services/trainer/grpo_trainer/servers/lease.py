"""The lease on the rollout servers, kept while the loop lives: an update may take longer than `weights.lease_s`.

Between two pushes no other weights call is made. A loop without a heartbeat lets the lease run out: another trainer may
then have the servers.
"""

import asyncio
import logging
from collections.abc import Callable

from grpo_proto import ConflictError, ServiceError

from .weight_session import WeightSession

log = logging.getLogger(__name__)

LONGEST_PERIOD_S = 60.0


class Lease:
    """Rank 0's. `session` gives the open one, `has_heartbeat` whether the loop lives.

    `taken_over` says who has a server now that was ours; None while nobody has.
    """

    def __init__(
        self, session: Callable[[], WeightSession | None], has_heartbeat: Callable[[], bool], *, lease_s: float
    ):
        self._session, self._has_heartbeat = session, has_heartbeat
        self._period_s = min(lease_s / 4, LONGEST_PERIOD_S)
        self.taken_over: str | None = None

    async def keep(self) -> None:
        """Renew for ever; for the event loop's background."""
        while self.taken_over is None:
            await asyncio.sleep(self._period_s)
            session = self._session()
            if session is None or not self._has_heartbeat():
                continue
            refusals = await session.renew()
            if self._session() is session:  # else it was closed meanwhile, and may well be refused
                self.taken_over = next(filter(None, map(_holder, refusals)), None)
        log.error("%s", self.taken_over)


def _holder(error: ServiceError) -> str | None:
    """Who has the server, where it says that it is not ours any more. One that restarted has no session at all."""
    if isinstance(error, ConflictError) and error.detail.type == "fenced":
        return f"another trainer has taken over: {error}"
    return None
