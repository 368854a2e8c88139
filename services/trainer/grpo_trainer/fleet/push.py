"""Push the new policy to every rollout server; a server samples with it only after verifying it.

Rank 0 calls the servers and decides. Gathering a sharded parameter is a collective of all ranks: `TensorSource.buckets`
commands it bucket by bucket, so that no rank waits alone in a gather.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from grpo_proto import BeginRequest, CommitRequest, Manifest, Rendezvous, ServiceError, SessionRequest
from grpo_proto.lifeline import Host
from grpo_proto.messages.weights import Backend, Kind
from grpo_proto.staging import buckets_in_the_way
from grpo_proto.transport import Digest, Transfer, gpu_uuid, nccl_version

from ..config.weights import WeightsConfig
from ..errors import RunError, ServersError, TrainerError, UsageError
from ..ranks.stop_signal import StopRequested, StopSignal
from .attendance import Attendance, MemberFailed, MemberLostError, is_final
from .event_loop import EventLoopThread
from .fleet import Fleet, Replica
from .lease import Lease
from .push_backend import choose_backend
from .push_plan import bucket_limit_s, plan_push
from .weight_session import WeightSession, close_sessions, listener_of, next_number, num_workers

log = logging.getLogger(__name__)

PAUSE_BETWEEN_ATTEMPTS_S = 1.0
ATTEMPTS_IN_A_DEADLINE = 3
JOIN_S_PER_WORKER = 0.25
TRIAL_SHARE = 0.5


class TensorSource(Protocol):
    """The named tensors to push. `crew_export.py` has every rank help to gather them."""

    kind: Kind
    absent: list[str]
    device: torch.device
    sharded: bool
    peft_config: dict[str, Any] | None
    """With `base_digest` of a `lora` push only, see `BeginRequest`."""
    base_digest: str | None

    def listed(self) -> list[tuple[str, str, list[int]]]: ...

    def buckets(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]: ...

    def release(self) -> None:
        """The push has ended: nothing is on its way."""


@dataclass(frozen=True)
class PushResult:
    session: int
    version: int
    seconds: float
    num_bytes: int
    attempts: int
    longest_gap_s: float
    """Between two signs of life of a member in a push of this session so far."""


class AttemptFailed(Exception):  # noqa: N818 - `push` decides whether that is an error
    """Why an attempt failed, and whether it is final: another attempt cannot succeed."""

    def __init__(self, reason: str, *, final: bool):
        super().__init__(reason)
        self.final = final


class WeightPusher:
    """Rank 0's side of all pushes of a run: holds the open session and its members."""

    def __init__(
        self,
        fleet: Fleet,
        loop: EventLoopThread,
        config: WeightsConfig,
        *,
        trainer_id: str,
        stop: StopSignal,
        has_heartbeat: Callable[[], bool],
    ):
        self.fleet, self.loop, self.config, self.trainer_id, self.stop = fleet, loop, config, trainer_id, stop
        self.session: WeightSession | None = None
        self.attendance = Attendance()
        self.lease = Lease(lambda: self.session, has_heartbeat, lease_s=config.lease_s)
        self._host: Host | None = None
        self._asked: dict[str, tuple[Replica, int]] = {}
        """The last session that each server was asked to join, by URL."""
        self._last_number = 0
        self._bucket_s = config.bucket_timeout_s
        self._try_all = False
        self._under_way: Transfer | None = None

    def open(self, version: int, export: TensorSource, deadline_s: float) -> Manifest:
        """Open a session with every server that answers, or keep the open one, and begin the push on all of them.

        Returns the push's manifest: its buckets are laid out for the backend that the session has chosen. Raises
        AttemptFailed, as do the methods below.
        """
        if self.lease.taken_over is not None:
            raise AttemptFailed(self.lease.taken_over, final=True)
        members: list[Replica] = []
        try:
            members = self.loop.run(self.fleet.reachable())
            backend = choose_backend(self.config, members, gpu=gpu_uuid(), nccl=nccl_version())
            manifest = plan_push(export.listed(), self.config.bucket_mib, backend)
            self._bucket_s = bucket_limit_s(
                manifest, self.config.bucket_timeout_s, backend=backend, push_deadline_s=self.config.push_deadline_s
            )
            members = self._attending(members, backend, max(manifest.bucket_bytes), deadline_s)
            session = self._session_with(members, backend, deadline_s)
            request = BeginRequest(
                session=session.number,
                version=version,
                kind=export.kind,
                manifest=manifest,
                absent=export.absent,
                peft_config=export.peft_config,
                base_digest=export.base_digest,
                # An adapter's versions keep their keys anyway.
                kv_cache=self.config.kv_cache if export.kind == "full" else "recompute",
                bucket_timeout_s=self._bucket_s,
                deadline_s=deadline_s,
            )
            self.loop.run(session.begin(request))
        except (MemberFailed, TrainerError, ServiceError, RuntimeError, TimeoutError) as error:
            raise self._give_up(error, members) from error
        return manifest

    def commit(self, version: int, digest: str, deadline_s: float) -> None:
        """Have the servers compare digests; servers that agree sample with `version` from now on."""
        session = self._open_session()
        limit_s = min(deadline_s, self.config.commit_timeout_s)
        request = CommitRequest(session=session.number, version=version, digest=digest, deadline_s=limit_s)
        try:
            self.loop.run(session.commit(request))
        except (MemberFailed, RuntimeError) as error:
            raise self._give_up(error, session.members) from error
        self.attendance.committed(session.members)
        self.loop.run(self.fleet.admit(session.members, session=session.number))

    def send(self, bucket: torch.Tensor) -> None:
        """Wait for the previous bucket, then start to broadcast `bucket`: leave it alone until `arrived`."""
        self.arrived()
        with self._giving_up():
            self._under_way = self._open_session().group.start_broadcast(bucket, timeout_s=self._bucket_s)

    def arrived(self) -> None:
        """Wait for the broadcast under way, if any."""
        transfer, self._under_way = self._under_way, None
        with self._giving_up():
            if transfer is not None:
                transfer.wait()

    def canary_agreed(self, version: int, urls: Collection[str]) -> None:
        """Report to the servers at `urls` that their logprobs of `version` agree with the trainer's own."""
        if self.session is not None:
            self.loop.run(self.session.renew(canary_agreed=version, agreed_urls=urls))

    def leave(self) -> None:
        """Leave the open session, if any, close the last one of each server, and stop listening.

        Of a server whose last push failed, too: it keeps that session, and would be held until the lease's end.
        """
        session, self.session = self.session, None
        asked, self._asked = self._asked, {}
        if session is not None:
            session.leave()
        if asked:
            self.loop.run(close_sessions(asked.values()))
        if self._host is not None:
            self._host.close()
            self._host = None

    def _open_session(self) -> WeightSession:
        if self.session is None:
            raise RunError("no weight session is open")
        return self.session

    def _attending(self, replicas: list[Replica], backend: Backend, num_bytes: int, deadline_s: float) -> list[Replica]:
        """Return the servers to push to: without those that are left out, and those that fail a trial.

        Servers on trial join the group alone first, and get a bucket of `num_bytes`: all of them after a failure
        without a culprit, else those that return. When all fail, the fault may be on this side, and nobody is left out.
        """
        here = self.attendance.present(replicas, minimum=self.fleet.min_replicas)
        everybody, self._try_all = self._try_all, False
        tried = here if everybody else [replica for replica in here if self.attendance.on_trial(replica)]
        if not tried or len(here) == 1:
            return here
        self._drop("the members are tried one by one")
        failures = self._trials(tried, backend, num_bytes, deadline_s)
        if len(failures) < len(here):
            for replica in tried:
                if replica.url in failures:
                    self.attendance.leave_out(replica, failures[replica.url])
        return self.attendance.present(replicas, minimum=self.fleet.min_replicas)

    def _trials(
        self, replicas: list[Replica], backend: Backend, num_bytes: int, deadline_s: float
    ) -> dict[str, BaseException]:
        """Try each server alone: side by side over Gloo, one after another over NCCL. Returns the errors."""

        async def trial(replica: Replica, number: int) -> None:
            session = await self._opened([replica], backend, number, trial_bytes=num_bytes)
            await session.drop("the trial is over")

        failures: dict[str, BaseException] = {}
        at_once = len(replicas) if backend == "gloo" else 1
        for start in range(0, len(replicas), at_once):
            batch = replicas[start : start + at_once]
            trials = [trial(replica, self._next_number([replica])) for replica in batch]
            outcomes = self.loop.run(_outcomes(trials), timeout_s=deadline_s)
            failures |= {r.url: error for r, error in zip(batch, outcomes, strict=True) if error is not None}
        return failures

    def _session_with(self, members: list[Replica], backend: Backend, deadline_s: float) -> WeightSession:
        kept = self.session
        if kept is not None and kept.members == members and kept.crew.ended is None and all(m.member for m in members):
            return kept
        self._drop("the members change")
        opened = self._opened(members, backend, self._next_number(members))
        self.session = self.loop.run(opened, timeout_s=deadline_s)
        return self.session

    async def _opened(
        self, members: list[Replica], backend: Backend, number: int, *, trial_bytes: int = 0
    ) -> WeightSession:
        config = self.config
        if self._host is None:
            self._host = Host(listener_of(config), silence_s=config.silence_s)
        # NCCL connects the members one after another. A trial is of one, and a push waits for it.
        workers = sum(map(num_workers, members))
        limit_s = config.bucket_timeout_s * (TRIAL_SHARE if trial_bytes else 1.0) + JOIN_S_PER_WORKER * workers
        continues = {url: before for url, (_, before) in self._asked.items()}
        self._asked |= {replica.url: (replica, number) for replica in members}
        crew = self._host.crew(number, 1 + workers)
        request = SessionRequest(
            session=number,
            trainer_id=self.trainer_id,
            rendezvous=Rendezvous(host=config.host, port=self._host.port),
            secret=crew.secret,
            rank_offset=1,
            world_size=1 + workers,
            backend=backend,
            take_over=config.take_over,
            lease_s=config.lease_s,
            silence_s=config.silence_s,
            trial_bytes=trial_bytes,
            deadline_s=min(limit_s, config.push_deadline_s),
        )
        return await WeightSession.open(crew, members, request, continues=continues)

    def _next_number(self, members: Sequence[Replica]) -> int:
        self._last_number = next_number(members, now_s=time.time(), after=self._last_number)
        return self._last_number

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Wrap an operation of the group."""
        try:
            yield
        except RuntimeError as error:
            session = self._open_session()
            raise self._give_up(session.lost() or error, session.members) from error

    def _give_up(self, error: Exception, members: Sequence[Replica]) -> AttemptFailed:
        """Drop the session, so that no server samples with half a policy, and record which members are at fault."""
        reason = str(error) or type(error).__name__
        self._drop(reason)
        failures = error.failures if isinstance(error, MemberFailed) and error.named else {}
        final = isinstance(error, UsageError)
        if isinstance(error, MemberFailed):
            failed_before = all(map(self.attendance.failed_before, members))
            final = is_final(error, num_members=len(members), all_failed_before=failed_before)
        self._try_all = not failures and not isinstance(error, TrainerError | ServiceError)
        for replica in self.fleet.replicas:
            if replica.url in failures:
                self.attendance.failed(replica, failures[replica.url])
            is_lost = isinstance(failures.get(replica.url), MemberLostError)
            why = failures.get(replica.url, f"another one failed ({reason})" if failures else reason)
            self.loop.run((self.fleet.lose if is_lost else self.fleet.suspend)(replica, why))
        return AttemptFailed(reason, final=final)

    def _drop(self, reason: str) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.loop.run(session.drop(reason))


async def _outcomes(trials: Sequence[Coroutine[Any, Any, None]]) -> list[BaseException | None]:
    return await asyncio.gather(*trials, return_exceptions=True)


def push(version: int, export: TensorSource, pusher: WeightPusher, config: WeightsConfig) -> PushResult:
    """Push the tensors of `export` as policy `version`, on rank 0; the other ranks help to gather each bucket.

    Leaves out a server that dies during the push and retries with the others, within `push_deadline_s`.

    Raises ServersError when no attempt has committed by then, or at once when no retry can help. Raises StopRequested
    when an attempt fails after a stop was requested: a drain stops the servers as well, so waiting for them is useless.
    """
    started = time.monotonic()
    attempts = 0
    while True:
        attempts += 1
        # An attempt that hangs leaves time for others.
        left_s = max(started + config.push_deadline_s - time.monotonic(), 1.0)
        left_s = min(left_s, config.push_deadline_s / ATTEMPTS_IN_A_DEADLINE)
        try:
            manifest = _attempt(version, export, pusher, left_s)
        except AttemptFailed as failure:
            log.warning("the push of version %d failed: %s", version, failure)
            if pusher.stop.requested:
                raise StopRequested from failure
            if failure.final or time.monotonic() - started >= config.push_deadline_s:
                raise ServersError(
                    f"version {version} could not be pushed ({attempts} attempts): {failure}",
                    hint="fix the cause, then start again with --resume",
                ) from failure
            time.sleep(PAUSE_BETWEEN_ATTEMPTS_S)
            continue
        seconds, session = time.monotonic() - started, pusher.session
        number, gap_s = (session.number, session.crew.longest_gap_s) if session else (0, 0.0)
        return PushResult(number, version, seconds, sum(manifest.bucket_bytes), attempts, gap_s)


def _attempt(version: int, export: TensorSource, pusher: WeightPusher, deadline_s: float) -> Manifest:
    """Begin, send and commit once. Returns the manifest of what every member serves then. Raises AttemptFailed."""
    manifest = pusher.open(version, export, deadline_s)
    try:
        digest = _send(export, manifest, pusher)
    finally:
        export.release()
    pusher.commit(version, digest, deadline_s)
    return manifest


def _send(export: TensorSource, manifest: Manifest, pusher: WeightPusher) -> str:
    """Digest and send each bucket while the next is gathered; return the digest. Gathers no more after a failure."""
    digest: Digest | None = None
    on_gpu = pusher.session is not None and pusher.session.group.backend == "nccl"
    in_the_way = buckets_in_the_way(manifest)
    buckets = export.buckets(manifest, export.device if on_gpu else "cpu")  # Gloo sends from CPU memory
    for number, bucket in enumerate(buckets):
        digest = digest or Digest(max(manifest.bucket_bytes), bucket.device)
        pusher.send(bucket)
        digest.add(bucket)
        # Wait for the broadcast first: the next gather synchronizes the GPU, and would wait without a timeout for a
        # broadcast that never ends. Two oversized buckets in a row share a buffer.
        if (on_gpu and export.sharded) or number in in_the_way:
            pusher.arrived()
    pusher.arrived()
    return digest.hexdigest() if digest else ""
