"""A weight session: one process group with some rollout servers, from its rendezvous through its pushes to its end.

A session is never repaired. When a member fails, drop the session and open another, with a higher number and the
remaining members, which continues it: what they sample meanwhile is not lost. Nothing here waits for a member that its
lifeline has lost.
"""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import torch

from grpo_proto import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    RenewRequest,
    ServiceError,
    SessionRequest,
)
from grpo_proto.lifeline import Crew
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import WeightGroup

from ..config.weights import WeightsConfig
from ..errors import UnavailableError, UsageError
from .attendance import MemberFailed, MemberLostError
from .fleet import MAX_MISSED_PROBES, Replica

log = logging.getLogger(__name__)

MAX_REASON = 1000
"""Characters of the reason that an abort sends to the servers."""
FAREWELL_TIMEOUT_S = 5.0
ANSWERS_S = 2.0
"""How long a session that does not form waits for its members' answers: a refusal says more than a lost connection."""
_farewells: set["asyncio.Task[None]"] = set()


class WeightSession:
    """Rank 0's side of one process group. Coroutines run in the event loop's thread."""

    def __init__(self, members: Sequence[Replica], crew: Crew, over: asyncio.Event, group: WeightGroup):
        self.number, self.members, self.crew, self.over, self.group = crew.session, list(members), crew, over, group

    @classmethod
    async def open(
        cls,
        crew: Crew,
        members: Sequence[Replica],
        request: SessionRequest,
        *,
        continues: Mapping[str, int] = MappingProxyType({}),
    ) -> "WeightSession":
        """Form a new group with the workers of all `members`, and try it with a bucket of `request.trial_bytes`.

        Args:
            request: to the first member.
            continues: by URL, the session before it of this process; what a member samples for that one goes on.

        Raises MemberFailed when it does not form, or the bucket does not come through.
        """
        over = _end_of(crew)
        ours = _in_daemon_thread(lambda: _group_of(crew, request))
        requests = requests_to(members, request, continues)
        calls = [replica.weights.session(one) for replica, one in zip(members, requests, strict=True)]
        try:
            await _all(members, calls, crew, over, limit_s=request.deadline_s + ANSWERS_S, grace_s=ANSWERS_S)
            group = await asyncio.wrap_future(ours)
        except MemberFailed as error:
            crew.close()
            named = {url: e for url, e in error.failures.items() if not _not_formed(e)}
            raise MemberFailed(named or error.failures, named=bool(named) or len(members) == 1) from error
        except BaseException:
            crew.close()
            raise
        log.info("weight session %d with %s over %s", crew.session, ", ".join(r.url for r in members), request.backend)
        return cls(members, crew, over, group)

    async def begin(self, request: BeginRequest) -> None:
        """Raises MemberFailed. From here to `commit` a member's silence counts as its death."""
        self.crew.watch(on=True)
        await _all(self.members, [replica.weights.begin(request) for replica in self.members], self.crew, self.over)

    async def commit(self, request: CommitRequest) -> None:
        """Raises MemberFailed."""
        await _all(self.members, [replica.weights.commit(request) for replica in self.members], self.crew, self.over)
        self.crew.watch(on=False)

    def lost(self) -> MemberFailed | None:
        """The members that their lifelines have lost; None while there is none."""
        return _lost(self.crew, self.members)

    async def renew(self, *, canary_agreed: int | None = None, agreed_urls: Collection[str] = ()) -> list[ServiceError]:
        """Renew the lease on all members. Returns the errors of members that refuse or do not answer.

        `canary_agreed`: the version that the canary compared with success on the members at `agreed_urls`.
        """
        plain = RenewRequest(session=self.number)
        agreed = RenewRequest(session=self.number, canary_agreed=canary_agreed)
        members = [replica for replica in self.members if not _is_away(replica)]
        calls = [replica.weights.renew(agreed if replica.url in agreed_urls else plain) for replica in members]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, ServiceError)]
        if unexpected:
            raise unexpected[0]
        return [answer for answer in answers if isinstance(answer, ServiceError)]

    async def drop(self, reason: str) -> None:
        """Leave the group, so that no member waits in it, and abort what was pushed, without waiting for anybody.

        Members that the next session takes need no goodbye: it replaces this one.
        """
        self.leave()
        request = AbortRequest(session=self.number, reason=reason[:MAX_REASON])
        _in_background(
            _gathered([r.weights.abort(request, timeout_s=FAREWELL_TIMEOUT_S) for r in self.members if not _is_away(r)])
        )

    def leave(self) -> None:
        """Leave the group. The members keep the session until it is replaced or closed, or its lease ends."""
        self.crew.close()
        self.group.close()


async def close_sessions(asked: Iterable[tuple[Replica, int]]) -> None:
    """Close each server's session of this number: another trainer need not wait for the lease's end."""
    there = [(replica, CloseRequest(session=number)) for replica, number in asked if not _is_away(replica)]
    await _gathered([r.weights.close_session(request, timeout_s=FAREWELL_TIMEOUT_S) for r, request in there])


def num_workers(replica: Replica) -> int:
    return replica.info.world_size if replica.info else 0


def _group_of(crew: Crew, request: SessionRequest) -> WeightGroup:
    """Join as rank 0."""
    limit_s, on_gpu = request.deadline_s, request.backend == "nccl"
    group = WeightGroup(
        crew,
        rank=0,
        world_size=request.world_size,
        backend=request.backend,
        timeout_s=limit_s,
        address=request.rendezvous.host,
    )
    try:
        if request.trial_bytes:
            group.try_bucket(request.trial_bytes, torch.device("cuda" if on_gpu else "cpu"), timeout_s=limit_s)
    except RuntimeError:
        group.close()
        raise
    return group


def requests_to(
    members: Sequence[Replica], request: SessionRequest, continues: Mapping[str, int]
) -> list[SessionRequest]:
    """Return `request` to each member: its workers' ranks follow those of the members before it."""
    requests, rank = [], request.rank_offset
    for replica in members:
        before = continues.get(replica.url) if replica.info and replica.info.continues_sessions else None
        requests.append(request.model_copy(update={"rank_offset": rank, "continues": before}))
        rank += num_workers(replica)
    return requests


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


def _end_of(crew: Crew) -> asyncio.Event:
    """An event of this loop that is set when the session ends."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop may be closed by then
            loop.call_soon_threadsafe(over.set)

    crew.when_ended(tell)
    return over


async def _all(
    members: Sequence[Replica],
    calls: Sequence[Awaitable[object]],
    crew: Crew,
    over: asyncio.Event,
    *,
    limit_s: float | None = None,
    grace_s: float = 0.0,
) -> None:
    """Await one call per member, at most `limit_s`, and until the session ends and `grace_s` more.

    Raises MemberFailed with the errors of all members that failed or did not answer, or with the member that its
    lifeline has lost.
    """
    answers = [asyncio.ensure_future(call) for call in calls]
    ending, answering = asyncio.ensure_future(over.wait()), asyncio.ensure_future(asyncio.wait(answers))
    try:
        await asyncio.wait((answering, ending), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if over.is_set() and grace_s > 0.0:
            await asyncio.wait((answering,), timeout=grace_s)
    finally:
        for task in (ending, answering, *answers):
            task.cancel()
    failures: dict[str, BaseException] = {}
    for replica, answer in zip(members, answers, strict=True):
        if not answer.done():
            if not over.is_set():
                failures[replica.url] = MemberLostError(f"it gave no answer within {limit_s:g} s")
        elif isinstance(error := answer.exception(), ServiceError):
            failures[replica.url] = error
        elif error is not None:
            raise error
    if failures:
        raise MemberFailed(failures)
    if not answering.done():
        raise _lost(crew, members) or RuntimeError(crew.ended)


def _lost(crew: Crew, members: Sequence[Replica]) -> MemberFailed | None:
    failures: dict[str, BaseException] = {}
    first = 1
    for replica in members:
        ranks = range(first, first + num_workers(replica))
        reasons = [f"its worker {rank - first} {reason}" for rank, reason in crew.lost.items() if rank in ranks]
        if reasons:
            failures[replica.url] = MemberLostError("; ".join(reasons))
        first += num_workers(replica)
    return MemberFailed(failures) if failures else None


def _not_formed(error: BaseException) -> bool:
    """Whether it only says that the group did not form."""
    return isinstance(error, ServiceError) and error.detail.type == "group_not_formed"


def _is_away(replica: Replica) -> bool:
    return replica.missed_probes >= MAX_MISSED_PROBES


async def _gathered(calls: Sequence[Awaitable[object]]) -> None:
    """Await all calls. Members that do not answer, or have another session, are only noted."""
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, ServiceError):
            log.info("at the end of a session: %s", answer)
        elif isinstance(answer, BaseException):
            raise answer


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and keep its task until it is done: asyncio itself does not keep tasks alive."""
    task = asyncio.create_task(work)
    _farewells.add(task)
    task.add_done_callback(_farewells.discard)
