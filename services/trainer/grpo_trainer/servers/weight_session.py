"""A weight session: one process group with some rollout servers, from its rendezvous through its pushes to its end.

A session is never repaired. When a member fails, close the session and open another, with a higher number and the
remaining members.
"""

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

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

from ..config.weights import WeightsConfig
from ..errors import UnavailableError, UsageError
from .blame import MemberFailed, who_kept_it_from_forming
from .fleet import Replica

log = logging.getLogger(__name__)

MAX_REASON = 1000
"""Characters of the reason that an abort sends to the servers."""


class WeightSession:
    """Rank 0's side of one process group. Coroutines run in the event loop's thread."""

    def __init__(self, number: int, members: Sequence[Replica], group: WeightGroup, config: WeightsConfig):
        self.number, self.members, self.group, self.config = number, list(members), group, config

    @classmethod
    async def open(
        cls, members: Sequence[Replica], config: WeightsConfig, *, trainer_id: str, backend: Backend, after: int = 0
    ) -> "WeightSession":
        """Form a new group with the workers of all `members`. Raises MemberFailed when it does not form."""
        number = next_number(members, now_s=time.time(), after=after)
        world_size = 1 + sum(replica.info.world_size for replica in members if replica.info)
        timeout_s = min(config.bucket_timeout_s, config.push_deadline_s)
        store, port = await asyncio.to_thread(_listen, config, timeout_s)
        # Give our side of the rendezvous a connection only: NCCL waits for ever for a missing member, and a thread that
        # held the store itself would block the port for the next session.
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
            arrived = await asyncio.to_thread(_arrived_members, store, requests, members)
            raise who_kept_it_from_forming(error.failures, arrived) from error
        finally:
            del store  # stop listening
        log.info("weight session %d with %s over %s", number, ", ".join(r.url for r in members), backend)
        return cls(number, members, group, config)

    async def begin(
        self,
        version: int,
        kind: Kind,
        manifest: Manifest,
        *,
        absent: list[str],
        peft_config: dict[str, Any] | None,
        base_digest: str | None,
        bucket_timeout_s: float,
        deadline_s: float,
    ) -> None:
        request = BeginRequest(
            session=self.number,
            version=version,
            kind=kind,
            manifest=manifest,
            absent=absent,
            peft_config=peft_config,
            base_digest=base_digest,
            # An adapter's versions keep their keys anyway, and a server from before the setting refuses the field.
            kv_cache=self.config.kv_cache if kind == "full" else "recompute",
            bucket_timeout_s=bucket_timeout_s,
            deadline_s=deadline_s,
        )
        await _all(self.members, [replica.weights.begin(request) for replica in self.members])

    async def commit(self, version: int, digest: str, *, deadline_s: float) -> None:
        request = CommitRequest(session=self.number, version=version, digest=digest, deadline_s=deadline_s)
        await _all(self.members, [replica.weights.commit(request) for replica in self.members])

    async def renew(self, *, canary_agreed: int | None = None, agreed_urls: Collection[str] = ()) -> list[ServiceError]:
        """Renew the lease on all members. Returns the errors of members that refuse or do not answer.

        `canary_agreed`: the version that the canary compared with success on the members at `agreed_urls`.
        """
        plain = RenewRequest(session=self.number)
        agreed = RenewRequest(session=self.number, canary_agreed=canary_agreed)
        calls = [replica.weights.renew(agreed if replica.url in agreed_urls else plain) for replica in self.members]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, ServiceError)]
        if unexpected:
            raise unexpected[0]
        return [answer for answer in answers if isinstance(answer, ServiceError)]

    async def abandon(self, reason: str) -> dict[str, WeightState | ServiceError]:
        """Leave the group, so that no member waits in it; abort the push on all members; end the session.

        Returns the members' answers to the abort, by URL.
        """
        self.group.close()
        request = AbortRequest(session=self.number, reason=reason[:MAX_REASON])
        answers = await asyncio.gather(
            *(replica.weights.abort(request, timeout_s=self.config.bucket_timeout_s) for replica in self.members),
            return_exceptions=True,
        )
        await self._end()
        answers_by_url: dict[str, WeightState | ServiceError] = {}
        for replica, answer in zip(self.members, answers, strict=True):
            if isinstance(answer, ServiceError):
                log.info("abort of session %d: %s", self.number, answer)
            elif not isinstance(answer, WeightState):
                raise answer
            answers_by_url[replica.url] = answer
        return answers_by_url

    async def close(self) -> None:
        """Leave the group, and close the session on all members."""
        self.group.close()
        await self._end()

    async def _end(self) -> None:
        """Close the session on all members: another trainer need not wait until the lease expires."""
        request = CloseRequest(session=self.number)
        await asyncio.gather(
            *(replica.weights.close_session(request, timeout_s=10.0) for replica in self.members),
            return_exceptions=True,
        )


def _arrived_members(store: TCPStore, requests: Sequence[SessionRequest], members: Sequence[Replica]) -> list[str]:
    """Return the URLs of the members all of whose workers have reached the rendezvous."""
    arrived = []
    for request, replica in zip(requests, members, strict=True):
        size = replica.info.world_size if replica.info else 0
        ranks = range(request.rank_offset, request.rank_offset + size)
        if store.check([joined_key(request.session, rank) for rank in ranks]):
            arrived.append(replica.url)
    return arrived


def next_number(members: Sequence[Replica], *, now_s: float, after: int) -> int:
    """Return epoch milliseconds, or more where a member has had a newer session of a trainer whose clock was ahead.

    A server accepts a session only if it is newer than every session before.
    """
    states = [replica.info.weights for replica in members if replica.info]
    theirs = [max(state.session or 0, state.newest_session or 0) for state in states]
    return max(int(now_s * 1000), after + 1, *(number + 1 for number in theirs))


def listener_of(config: WeightsConfig) -> socket.socket:
    """Listen on the interface of `weights.host` alone.

    Raises UnavailableError when the port is taken, and UsageError when the host is not this machine's.
    """
    try:
        return listening_socket(config.host, config.port)
    except OSError as error:
        kind = UnavailableError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(
            f"weights.host {config.host} port {config.port} cannot be listened on: {error.strerror}",
            hint="set weights.host to this machine's address as rollout servers reach it; port 0 takes a free port",
        ) from error


def _listen(config: WeightsConfig, timeout_s: float) -> tuple[TCPStore, int]:
    """Open the store of the rendezvous."""
    listener = listener_of(config)
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
    """Run our side of the rendezvous in a daemon thread, which does not keep the process from ending.

    For a missing member Gloo waits until its timeout and NCCL for ever, after every other part has given up.
    """
    future: Future[WeightGroup] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # a waiter that gives up must not cancel it
        try:
            future.set_result(join())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weight-group", daemon=True).start()
    return future


async def _all(members: Sequence[Replica], calls: Sequence[Awaitable[object]]) -> None:
    """Await one call per member. Raises MemberFailed with the errors of all members that failed."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    failures: dict[str, BaseException] = {}
    for replica, answer in zip(members, answers, strict=True):
        if isinstance(answer, ServiceError):
            failures[replica.url] = answer
        elif isinstance(answer, BaseException):
            raise answer
    if failures:
        raise MemberFailed(failures)
