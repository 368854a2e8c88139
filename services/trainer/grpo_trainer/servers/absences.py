"""Which rollout servers a push is made without: one that fails pushes must not fail them for the others.

A server at fault is tried once more in the same push, then left out of it. It comes back after 1, 2, 4 … pushes that
committed, and is left out again at once if it still fails. A server that restarted is a new one.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from .fleet import Replica

log = logging.getLogger(__name__)

FAULTS_ALLOWED = 1
"""In one push, of a server that has not been left out since its last push."""


@dataclass
class Record:
    """What one server has done to pushes since the last one that it committed."""

    faults: int = 0
    """In the push under way."""
    times_left_out: int = 0
    pushes_left: int = 0
    """It is left out of so many, the one under way among them."""


class Absences:
    """Knows servers by their `server_id`."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def chosen(self, replicas: Sequence[Replica], *, minimum: int) -> list[Replica]:
        """Those of `replicas` to push to; all of them when fewer than `minimum` would be left."""
        present = [replica for replica in replicas if self._record(replica).pushes_left == 0]
        return present if len(present) >= minimum else list(replicas)

    def failed(self, replica: Replica, reason: object) -> None:
        """It is at fault for the failure of an attempt."""
        record = self._record(replica)
        record.faults += 1
        if record.faults > (0 if record.times_left_out else FAULTS_ALLOWED):
            self.leave_out(replica, reason)

    def failed_before(self, replica: Replica) -> bool:
        """Whether it has been at fault in the push under way."""
        return self._record(replica).faults > 0

    def leave_out(self, replica: Replica, reason: object) -> None:
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
        """A push is over. Who took part in it has a clean record, the others are one push nearer to their next try."""
        for replica in members:
            self._records.pop(_server_id(replica), None)
        for record in self._records.values():
            record.faults = 0
            record.pushes_left = max(record.pushes_left - 1, 0)

    def _record(self, replica: Replica) -> Record:
        return self._records.setdefault(_server_id(replica), Record())


def _server_id(replica: Replica) -> str:
    return replica.info.server_id if replica.info else replica.url
