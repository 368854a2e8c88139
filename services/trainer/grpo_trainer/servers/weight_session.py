"""One weight group with some rollout servers: opened together, pushed to together, left together.

A session is never repaired. When a member fails, the session is closed and another one, with a higher number, is
opened with those that are left.
"""

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta

from torch.distributed import TCPStore

from grpo_proto import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    Manifest,
    Rendezvous,
    RenewRequest,
    ServiceError,
    SessionRequest,
    WeightState,
)
from grpo_proto.messages.weights import Backend, Kind
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import WeightGroup, joined_key

from ..config.run_config import WeightsConfig
from ..errors import UnavailableError, UsageError
from .blame import MemberFailed, who_kept_it_from_forming
from .fleet import Replica

log = logging.getLogger(__name__)

MAX_REASON = 1000
"""Characters of why a push is given up that a server is told."""


class WeightSession:
    """Rank 0's side of one process group. Coroutines run in the event loop's thread."""

    def __init__(self, number: int, members: Sequence[Replica], group: WeightGroup, config: WeightsConfig):
        self.number, self.members, self.group, self.config = number, list(members), group, config

    @classmethod
    async def open(
        cls, members: Sequence[Replica], config: WeightsConfig, *, trainer_id: str, backend: Backend, after: int = 0
    ) -> "WeightSession":
        """Meet the workers of all `members` in a new group. Raises MemberFailed naming those that did not come."""
        number = next_number(members, now_s=time.time(), after=after)
        world_size = 1 + sum(replica.info.world_size for replica in members if replica.info)
        timeout_s = min(config.bucket_timeout_s, config.push_deadline_s)
        store, port = await asyncio.to_thread(_listen, config, timeout_s)
        # Our side of the meeting has a connection only: NCCL waits for ever for a member that does not come, and a
        # thread that kept the store would keep the port from the next session.
        connection = await asyncio.to_thread(store.clone)
        requests, rank = [], 1
        for replica in members:
            requests.append(
                SessionRequest(
                    session=number,
                    trainer_id=trainer_id,
                    rendezvous=Rendezvous(host=config.host, port=port),
                    rank_offset=rank,
                    world_size=world_size,
                    backend=backend,
                    take_over=config.take_over,
                    lease_s=config.lease_s,
                    deadline_s=timeout_s,
                )
            )
            rank += replica.info.world_size if replica.info else 0
        ours = _in_daemon_thread(
            lambda: WeightGroup(
                connection,
                session=number,
                rank=0,
                world_size=world_size,
                backend=backend,
                timeout_s=timeout_s,
                address=config.host,
            )
        )
        calls = [replica.weights.session(request) for replica, request in zip(members, requests, strict=True)]
        try:
            await _all(members, calls)
            group = await asyncio.wrap_future(ours)
        except MemberFailed as error:
            came = await asyncio.to_thread(_who_came, store, requests, members)
            raise who_kept_it_from_forming(error.failures, came) from error
        finally:
            del store  # it listens no longer
        log.info("weight session %d with %s over %s", number, ", ".join(r.url for r in members), backend)
        return cls(number, members, group, config)

    async def begin(
        self, version: int, kind: Kind, manifest: Manifest, *, bucket_timeout_s: float, deadline_s: float
    ) -> None:
        request = BeginRequest(
            session=self.number,
            version=version,
            kind=kind,
            manifest=manifest,
            bucket_timeout_s=bucket_timeout_s,
            deadline_s=deadline_s,
        )
        await _all(self.members, [replica.weights.begin(request) for replica in self.members])

    async def commit(self, version: int, digest: str, *, deadline_s: float) -> None:
        request = CommitRequest(session=self.number, version=version, digest=digest, deadline_s=deadline_s)
        await _all(self.members, [replica.weights.commit(request) for replica in self.members])

    async def renew(self) -> list[ServiceError]:
        """Start the lease on all members again. Returns what those say that do not."""
        request = RenewRequest(session=self.number)
        answers = await asyncio.gather(
            *(replica.weights.renew(request) for replica in self.members), return_exceptions=True
        )
        unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, ServiceError)]
        if unexpected:
            raise unexpected[0]
        return [answer for answer in answers if isinstance(answer, ServiceError)]

    async def abandon(self, reason: str) -> dict[str, WeightState | ServiceError]:
        """Leave the group, so that nobody waits in it; tell all members to give the push up; end the session.

        Returns what they answer, by URL.
        """
        self.group.close()
        request = AbortRequest(session=self.number, reason=reason[:MAX_REASON])
        answers = await asyncio.gather(
            *(replica.weights.abort(request, timeout_s=self.config.bucket_timeout_s) for replica in self.members),
            return_exceptions=True,
        )
        await self._end()
        told: dict[str, WeightState | ServiceError] = {}
        for replica, answer in zip(self.members, answers, strict=True):
            if isinstance(answer, ServiceError):
                log.info("abort of session %d: %s", self.number, answer)
            elif not isinstance(answer, WeightState):
                raise answer
            told[replica.url] = answer
        return told

    async def close(self) -> None:
        """Leave the group and tell the members."""
        self.group.close()
        await self._end()

    async def _end(self) -> None:
        """Give up the lease: another trainer need not wait for its end."""
        request = CloseRequest(session=self.number)
        await asyncio.gather(
            *(replica.weights.close_session(request, timeout_s=10.0) for replica in self.members),
            return_exceptions=True,
        )


def _who_came(store: TCPStore, requests: Sequence[SessionRequest], members: Sequence[Replica]) -> list[str]:
    """Members all of whose workers have reached the rendezvous."""
    came = []
    for request, replica in zip(requests, members, strict=True):
        size = replica.info.world_size if replica.info else 0
        ranks = range(request.rank_offset, request.rank_offset + size)
        if store.check([joined_key(request.session, rank) for rank in ranks]):
            came.append(replica.url)
    return came


def next_number(members: Sequence[Replica], *, now_s: float, after: int) -> int:
    """Epoch milliseconds; more where a member has had a newer session, of a trainer whose clock was ahead of this one.

    A server takes only newer sessions than all that have been there.
    """
    states = [replica.info.weights for replica in members if replica.info]
    theirs = [max(state.session or 0, state.newest_session or 0) for state in states]
    return max(int(now_s * 1000), after + 1, *(number + 1 for number in theirs))


def _listen(config: WeightsConfig, timeout_s: float) -> tuple[TCPStore, int]:
    """The rendezvous, listening on the interface of `weights.host` alone."""
    try:
        listener = listening_socket(config.host, config.port)
    except OSError as error:
        kind = UnavailableError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(
            f"weights.host {config.host} port {config.port} cannot be listened on: {error.strerror}",
            hint="weights.host is this machine's own address as the rollout servers see it; port 0 takes a free one",
        ) from error
    port = listener.getsockname()[1]
    store = TCPStore(
        config.host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )
    return store, port


def _in_daemon_thread(join: Callable[[], WeightGroup]) -> "Future[WeightGroup]":
    """Our own side of the meeting. When a member does not come, Gloo waits until its time-out and NCCL for ever, and
    nobody for them: a daemon thread does not keep a process that gave up from ending."""
    future: Future[WeightGroup] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # who gives up does not take it away from this thread
        try:
            future.set_result(join())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weight-group", daemon=True).start()
    return future


async def _all(members: Sequence[Replica], calls: Sequence[Awaitable[object]]) -> None:
    """Await one call per member; raise MemberFailed with everything that went wrong."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failures: dict[str, BaseException] = {}
    for replica, answer in zip(members, answers, strict=True):
        if isinstance(answer, ServiceError):
            failures[replica.url] = answer
        elif isinstance(answer, BaseException):
            raise answer
    if failures:
        raise MemberFailed(failures)
