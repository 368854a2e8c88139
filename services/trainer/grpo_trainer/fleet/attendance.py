"""Which servers a push goes to, after the faults of earlier ones.

Nobody is at fault by inference. A server is at fault when its lifeline, its refusal or its digest names it, or when it
fails a trial, alone with the trainer. A server that refuses may do so once in a push; one that is lost, or fails a
trial, is left out at once. It returns after 1, 2, 4 … committed pushes, when it passes a trial. A server that restarted
begins with a clean record.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_proto import ConflictError, DataError, FatalError, InfrastructureError

from .fleet import Replica

log = logging.getLogger(__name__)

HELD = {"session_held", "fenced"}
"""Refusals of a server that belongs to another trainer, or to a newer process of this run."""
PASSING = {
    "no_session",
    "old_session",
    "no_group",
    "push_in_progress",
    "not_loading",
    "wrong_version",
    "digest_mismatch",
}
"""Refusals of a server that lost its session or received broken data: a new session may succeed."""


class MemberFailed(Exception):  # noqa: N818 - it names the failed members; the push decides whether that is an error
    """Some members of a session failed: `failures`, by URL.

    `named`: these members are at fault. False when one of them is, and only a trial can tell which.
    """

    def __init__(self, failures: Mapping[str, BaseException], *, named: bool = True):
        self.failures, self.named = failures, named
        super().__init__("; ".join(f"{url}: {error}" for url, error in failures.items()))


class MemberLostError(Exception):
    """A member died or stands still, or says that it cannot go on: what its lifeline told."""


def is_final(error: MemberFailed, *, num_members: int, all_failed_before: bool) -> bool:
    """Whether repeating the push is useless: another trainer holds a server, or all members refuse alike.

    A refusal that may pass (`PASSING`) is final only after every member has been at fault before in this push.
    """
    errors = list(error.failures.values())
    if any(isinstance(e, ConflictError) and e.detail.type in HELD for e in errors):
        return True
    if len(errors) < num_members or any(isinstance(e, InfrastructureError | MemberLostError) for e in errors):
        return False
    refusals = {e.detail.type for e in errors if isinstance(e, ConflictError | DataError | FatalError)}
    return len(refusals) == 1 and (all_failed_before or not refusals <= PASSING)


@dataclass
class Record:
    """The faults of one server since it last committed a push."""

    faults: int = 0
    """In the current push."""
    times_left_out: int = 0
    pushes_left: int = 0
    """How many pushes the server is left out of, counting the current push."""


class Attendance:
    """The records of all servers, by `server_id`."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def present(self, replicas: Sequence[Replica], *, minimum: int) -> list[Replica]:
        """Return the `replicas` to push to; all of them when fewer than `minimum` would remain."""
        here = [replica for replica in replicas if self._record(replica).pushes_left == 0]
        return here if len(here) >= minimum else list(replicas)

    def on_trial(self, replica: Replica) -> bool:
        """Whether the server was left out and has not committed a push since."""
        return self._record(replica).times_left_out > 0

    def failed(self, replica: Replica, error: BaseException) -> None:
        """Record that `replica` is at fault for a failed attempt."""
        record = self._record(replica)
        record.faults += 1
        if isinstance(error, MemberLostError) or record.faults > 1:
            self.leave_out(replica, error)

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
