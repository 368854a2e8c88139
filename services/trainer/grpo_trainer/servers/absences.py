"""Leave a rollout server that fails pushes out for a while, so that the other servers get their weights.

A server at fault gets one more attempt in the same push, then is left out. It returns after 1, 2, 4 … committed pushes,
and is left out again at its next fault. A server that restarted begins with a clean record.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from .fleet import Replica

log = logging.getLogger(__name__)

FAULTS_ALLOWED = 1
"""Faults in one push of a server that has not been left out since it last committed a push."""


@dataclass
class Record:
    """The faults of one server since it last committed a push."""

    faults: int = 0
    """In the current push."""
    times_left_out: int = 0
    pushes_left: int = 0
    """How many pushes the server is left out of, counting the current push."""


class Absences:
    """The records of all servers, by `server_id`."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def chosen(self, replicas: Sequence[Replica], *, minimum: int) -> list[Replica]:
        """Return the `replicas` to push to; all of them when fewer than `minimum` would remain."""
        present = [replica for replica in replicas if self._record(replica).pushes_left == 0]
        return present if len(present) >= minimum else list(replicas)

    def failed(self, replica: Replica, reason: object) -> None:
        """Record that `replica` is at fault for a failed attempt."""
        record = self._record(replica)
        record.faults += 1
        if record.faults > (0 if record.times_left_out else FAULTS_ALLOWED):
            self.leave_out(replica, reason)

    def failed_before(self, replica: Replica) -> bool:
        """Whether `replica` has been at fault in the current push."""
        return self._record(replica).faults > 0

    def leave_out(self, replica: Replica, reason: object) -> None:
        """Leave `replica` out of the next pushes, twice as many as the last time."""
        record = self._record(replica)
        record.pushes_left = 2**record.times_left_out
        record.times_left_out += 1
        log.warning(
            "rollout server %s fails pushes and is left out of %s, while rollout.min_replicas others are there: %s",
            replica.url,
            "this one" if record.pushes_left == 1 else f"{record.pushes_left} of them",
            reason,
        )

    def committed(self, members: Sequence[Replica]) -> None:
        """End a push: clear the records of its `members`; the other servers are one push nearer to their return."""
        for replica in members:
            self._records.pop(_server_id(replica), None)
        for record in self._records.values():
            record.faults = 0
            record.pushes_left = max(record.pushes_left - 1, 0)

    def _record(self, replica: Replica) -> Record:
        return self._records.setdefault(_server_id(replica), Record())


def _server_id(replica: Replica) -> str:
    return replica.info.server_id if replica.info else replica.url
