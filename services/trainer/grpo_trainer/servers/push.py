"""Push the new policy to every rollout server; a server samples with it only after verifying it.

Rank 0 calls the servers and decides. Gathering a sharded parameter is a collective of all ranks: `TensorSource.buckets`
commands it bucket by bucket, so that no rank waits alone in a gather.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from grpo_proto import Manifest, ServiceError, WeightState
from grpo_proto.messages.weights import Backend, Kind
from grpo_proto.transport import Digest, Transfer, gpu_uuid, nccl_version

from ..config.weights import WeightsConfig
from ..errors import RunError, ServersError, TrainerError, UsageError
from ..ranks.stop_signal import StopRequested, StopSignal
from .absences import Absences
from .blame import MemberFailed, is_final, who_broke_it_off
from .event_loop import EventLoopThread
from .fleet import Fleet, Replica
from .lease import Lease
from .push_plan import bucket_limit_s, plan_push
from .weight_session import MAX_REASON, WeightSession

log = logging.getLogger(__name__)

PAUSE_BETWEEN_ATTEMPTS_S = 1.0


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


@dataclass(frozen=True)
class PushResult:
    session: int
    version: int
    seconds: float
    num_bytes: int
    attempts: int


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed, and whether it is final: another attempt cannot succeed."""

    reason: str
    final: bool


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
        self.absences = Absences()
        self.lease = Lease(lambda: self.session, has_heartbeat, lease_s=config.lease_s)
        self._last_number = 0
        self._bucket_s = config.bucket_timeout_s
        self._try_each_alone = False
        self._under_way: Transfer | None = None

    def open(self, version: int, export: TensorSource, deadline_s: float) -> Manifest | Failure:
        """Open a session with every server that answers, or keep the open one, and begin the push on all of them.

        Returns the push's manifest: its buckets are laid out for the backend that the session has chosen.
        """
        if self.lease.taken_over is not None:
            return Failure(self.lease.taken_over, final=True)
        members: list[Replica] = []
        try:
            members = self._members(deadline_s)
            session = self._session_with(members, deadline_s)
            manifest = plan_push(export.listed(), self.config.bucket_mib, session.group.backend)
            self._bucket_s = bucket_limit_s(
                manifest, self.config.bucket_timeout_s, push_deadline_s=self.config.push_deadline_s
            )
            self.loop.run(
                session.begin(
                    version,
                    export.kind,
                    manifest,
                    absent=export.absent,
                    peft_config=export.peft_config,
                    base_digest=export.base_digest,
                    bucket_timeout_s=self._bucket_s,
                    deadline_s=deadline_s,
                )
            )
        except MemberFailed as error:
            return self._give_up(error, final=self._is_final(error, members))
        except (TrainerError, ServiceError, RuntimeError, TimeoutError) as error:
            return self._give_up(error, final=isinstance(error, UsageError))
        return manifest

    def commit(self, version: int, digest: str, deadline_s: float) -> Failure | None:
        """Have the servers compare digests; servers that agree sample with `version` from now on."""
        session = self._open_session()
        try:
            self.loop.run(session.commit(version, digest, deadline_s=deadline_s))
        except MemberFailed as error:
            return self._give_up(error, final=self._is_final(error, session.members))
        self.absences.committed(session.members)
        self.loop.run(self.fleet.admit(session.members, session=session.number))
        return None

    def send(self, bucket: torch.Tensor) -> Failure | None:
        """Wait for the previous bucket, then start to broadcast `bucket`: leave it alone until `arrived`."""
        failure = self.arrived()
        if failure is not None:
            return failure
        try:
            self._under_way = self._open_session().group.start_broadcast(bucket, timeout_s=self._bucket_s)
        except RuntimeError as error:
            return self._give_up(error, final=False)
        return None

    def arrived(self) -> Failure | None:
        """Wait for the broadcast under way, if any."""
        transfer, self._under_way = self._under_way, None
        try:
            if transfer is not None:
                transfer.wait()
        except RuntimeError as error:
            return self._give_up(error, final=False)
        return None

    def canary_agreed(self, version: int, urls: Collection[str]) -> None:
        """Report to the servers at `urls` that their logprobs of `version` agree with the trainer's own."""
        if self.session is not None:
            self.loop.run(self.session.renew(canary_agreed=version, agreed_urls=urls))

    def leave(self) -> None:
        """Close the open session, if any."""
        if self.session is not None:
            session, self.session = self.session, None
            self.loop.run(session.close())

    def _open_session(self) -> WeightSession:
        if self.session is None:
            raise RunError("no weight session is open")
        return self.session

    def _members(self, deadline_s: float) -> list[Replica]:
        """Return the servers that answer, without the absent ones.

        After a failure without a culprit, open a session with each server alone first, and leave out those that fail.
        """
        members = self._without_absent(self.loop.run(self.fleet.reachable()))
        if self._try_each_alone and len(members) > 1:
            self._try_each_alone = False
            failures: dict[str, Exception] = {}
            for replica in members:
                try:
                    self._open_with([replica], deadline_s)
                except (MemberFailed, ServiceError, RuntimeError, TimeoutError) as error:
                    failures[replica.url] = error
                self.leave()
            if len(failures) < len(members):  # otherwise the fault is on this side
                for replica in members:
                    if replica.url in failures:
                        self.absences.leave_out(replica, failures[replica.url])
            members = self._without_absent(members)
        return members

    def _without_absent(self, replicas: list[Replica]) -> list[Replica]:
        return self.absences.chosen(replicas, minimum=self.fleet.min_replicas)

    def _session_with(self, members: list[Replica], deadline_s: float) -> WeightSession:
        if self.session is not None and self.session.members == members and all(m.member for m in members):
            return self.session
        self.leave()
        return self._open_with(members, deadline_s)

    def _open_with(self, members: list[Replica], deadline_s: float) -> WeightSession:
        opening = WeightSession.open(
            members,
            self.config,
            trainer_id=self.trainer_id,
            backend=choose_backend(self.config, members, gpu=gpu_uuid(), nccl=nccl_version()),
            after=self._last_number,
        )
        self.session = self.loop.run(opening, timeout_s=deadline_s)
        self._last_number = self.session.number
        return self.session

    def _is_final(self, error: MemberFailed, members: Sequence[Replica]) -> bool:
        all_failed_before = all(self.absences.failed_before(replica) for replica in members)
        return is_final(error, num_members=len(members), all_failed_before=all_failed_before)

    def _give_up(self, error: Exception, *, final: bool) -> Failure:
        """Abandon the session, so that no server samples with half a policy, and record which members are at fault."""
        reason = str(error) or type(error).__name__
        answers = self._abandon(reason)
        if isinstance(error, MemberFailed):
            at_fault: Mapping[str, object] = error.failures if error.decided else {}
            self._try_each_alone = not error.decided
        else:
            # Report the servers' reasons, too: out of memory on a server looks like a lost connection here.
            reasons = [f"{url}: {a.reason}" for url, a in answers.items() if isinstance(a, WeightState) and a.reason]
            reason = "; ".join([*(r for r in reasons if not r.endswith(reason[:MAX_REASON])), reason])
            at_fault = who_broke_it_off(answers)
            self._try_each_alone = bool(answers) and not at_fault
        log.warning("push failed: %s", reason)
        for replica in self.fleet.replicas:
            if replica.url in at_fault:
                self.absences.failed(replica, at_fault[replica.url])
            if not isinstance(error, MemberFailed) or replica.url in error.failures:
                self.loop.run(self.fleet.expel(replica, reason))
        return Failure(reason, final)

    def _abandon(self, reason: str) -> dict[str, WeightState | ServiceError]:
        """Abandon the open session, if any. Returns the members' answers, by URL."""
        session, self.session = self.session, None
        return self.loop.run(session.abandon(reason)) if session is not None else {}


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
        left_s = max(started + config.push_deadline_s - time.monotonic(), 1.0)
        outcome = _attempt(version, export, pusher, left_s)
        seconds = time.monotonic() - started
        if isinstance(outcome, Manifest):
            number = pusher.session.number if pusher.session else 0
            return PushResult(number, version, seconds, sum(outcome.bucket_bytes), attempts)
        if pusher.stop.requested:
            raise StopRequested
        if outcome.final or seconds >= config.push_deadline_s:
            raise ServersError(
                f"version {version} could not be pushed ({attempts} attempts): {outcome.reason}",
                hint="fix the cause, then start again with --resume",
            )
        time.sleep(PAUSE_BETWEEN_ATTEMPTS_S)


def _attempt(version: int, export: TensorSource, pusher: WeightPusher, deadline_s: float) -> Manifest | Failure:
    """Begin, send and commit once. Returns the manifest of what every member serves then, or why it failed."""
    manifest = pusher.open(version, export, deadline_s)
    if isinstance(manifest, Failure):
        return manifest
    failure, digest = _send(export, manifest, pusher)
    return failure or pusher.commit(version, digest, deadline_s) or manifest


def _send(export: TensorSource, manifest: Manifest, pusher: WeightPusher) -> tuple[Failure | None, str]:
    """Digest and send each bucket while the next is gathered. Stops gathering at the first failure."""
    digest: Digest | None = None
    on_gpu = pusher.session is not None and pusher.session.group.backend == "nccl"
    for bucket in export.buckets(manifest, export.device if on_gpu else "cpu"):  # Gloo sends from CPU memory
        digest = digest or Digest(max(manifest.bucket_bytes), bucket.device)
        if (failure := pusher.send(bucket)) is not None:
            return failure, ""
        digest.add(bucket)
        # Wait for the broadcast first: the next gather synchronizes the GPU, and would wait without a timeout for a
        # broadcast that never ends.
        if on_gpu and export.sharded and (failure := pusher.arrived()) is not None:
            return failure, ""
    return pusher.arrived(), digest.hexdigest() if digest else ""


def choose_backend(config: WeightsConfig, members: list[Replica], *, gpu: str | None, nccl: str | None) -> Backend:
    """Choose NCCL where it can work, Gloo elsewhere. `gpu` and `nccl` are this process's own, as in `RolloutInfo`. A
    dry run may know no members.

    Raises UsageError when the configuration requires NCCL where it cannot work.
    """
    if config.backend == "gloo":
        return "gloo"
    obstacle = (
        "this trainer has no GPU"
        if gpu is None or nccl is None
        else next(filter(None, (_no_nccl(gpu, nccl, member) for member in members)), None)
    )
    if obstacle is None:
        return "nccl"
    if config.backend == "nccl":
        raise UsageError(f"weights.backend is nccl, but {obstacle}", hint="remove the setting, or set it to gloo")
    if gpu is not None:
        log.warning("weights travel over gloo, through CPU memory: %s", obstacle)
    return "gloo"


def _no_nccl(gpu: str, nccl: str, member: Replica) -> str | None:
    """Why this process and `member` cannot connect over NCCL; None when no obstacle is known."""
    info = member.info
    if info is None or info.device != "cuda":
        return f"{member.url} has no GPU"
    if gpu in info.gpus:
        return f"{member.url} uses the same GPU; NCCL needs a separate GPU for each member"
    if info.nccl_version not in (None, nccl):
        return f"{member.url} has NCCL {info.nccl_version}, this trainer {nccl}: the two versions refuse each other"
    return None
