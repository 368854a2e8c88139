"""Receive weights from a trainer: carry out the state machine's decisions in the engine.

Each public method is one call of `/v1/weights`. The state changes at once, in memory; the calls of the engine that
follow from it run in order, under one lock. Waits for: the workers, whose waits all have their own timeouts.
Unblocks: requests that wait for a commit.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Any, NamedTuple

from grpo_proto.messages.weights import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    Manifest,
    RenewRequest,
    SessionRequest,
    WeightState,
)
from grpo_proto.server.refusal import Refusal

from . import metrics, weight_state
from .adapters import Adapters
from .engine import Engine, EngineDiedError, WorkerError
from .manifest_check import ModelTensors, check_manifest
from .weight_state import Push, Weights

logger = logging.getLogger("vllm.grpo_rollout.pushes")

JOIN_POLL_S = 0.02
ARRIVAL_POLL_S = 0.005
"""How often the workers look for a bucket of an adapter. Each look interrupts sampling for less than a millisecond."""
ABORT_TIMEOUT_S = 5.0
"""How long an abort waits for the workers' progress. A worker that loads a bucket may take longer."""
JOIN_GRACE_S = 1.0
"""How long after the deadline to wait for the error of a worker that could not join in time."""


class Reception(NamedTuple):
    """A push of which every bucket has been requested from the workers."""

    push: Push
    started_s: float
    num_bytes: int


class Pushes:
    """Holds the weight state of this server; one instance per server.

    Args:
        tensors: the model's list of tensors; or why there is none, which refuses full pushes.
        adapters: the adapter versions; None refuses adapters.
    """

    def __init__(
        self, engine: Engine, *, world_size: int, tensors: ModelTensors | str, adapters: Adapters | None = None
    ):
        self.engine = engine
        self.world_size = world_size
        self.tensors = tensors
        self.adapters = adapters
        if adapters is not None:
            adapters.on_unused = self._unload_unused
        self.weights = Weights()
        self.server_id = uuid.uuid4().hex[:12]
        self._overwritten: set[str] = set()
        """Tensors that are no longer as they were loaded from disk."""
        self._workers_lock = asyncio.Lock()
        self._receiving: asyncio.Task[Reception] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._frozen: asyncio.TimerHandle | None = None
        self._recoveries: set[asyncio.Task[None]] = set()
        self._unloads: set[asyncio.Task[None]] = set()

    def message(self) -> WeightState:
        return self.weights.message(now_s=time.monotonic())

    async def open_session(self, request: SessionRequest) -> WeightState:
        """Join a trainer's process group. Raises Refusal: 409 from the state machine, 422 ranks, 504 no group."""
        if request.rank_offset + self.world_size > request.world_size:
            raise Refusal.invalid(
                "world_size",
                f"ranks {request.rank_offset} to {request.rank_offset + self.world_size - 1} of this server's "
                f"workers do not fit into a group of {request.world_size}",
            )
        deadline_at_s = time.monotonic() + request.deadline_s
        before = self.weights
        self._set(
            weight_state.open_session(
                before,
                session=request.session,
                trainer_id=request.trainer_id,
                lease_s=request.lease_s,
                take_over=request.take_over,
                now_s=time.monotonic(),
                continues=request.continues,
            )
        )
        if before.session is not None:
            logger.warning("session %s of %s replaces %s", request.session, request.trainer_id, before.session)
        try:
            async with self._workers_lock:
                self._require_session(request.session)
                rendezvous = request.rendezvous
                rest_s = max(0.1, deadline_at_s - time.monotonic())
                await self.engine.workers("join", request.model_dump_json(), rest_s)
            # Poll: a call that waits for the other members would keep the engine from sampling.
            while not all(await self.engine.workers("joined", request.session)):
                if time.monotonic() > deadline_at_s + JOIN_GRACE_S:
                    raise WorkerError(f"the group did not form within {request.deadline_s:g} s")
                await asyncio.sleep(JOIN_POLL_S)
        except WorkerError as error:
            self._require_session(request.session)
            self._set(weight_state.not_joined(self.weights))
            raise Refusal(
                504,
                "group_not_formed",
                f"no process group of {request.world_size} at {rendezvous.host}:{rendezvous.port}: {error}",
                hint="check that this server reaches the trainer at that address, and that every member joined",
            ) from error
        self._require_session(request.session)
        self.weights = weight_state.set_group(self.weights, request.session, has_group=True)
        return self.message()

    async def close_session(self, request: CloseRequest) -> WeightState:
        """Leave the group. Raises Refusal (409) for another session."""
        self._renew(request.session)
        self._set(weight_state.close_session(self.weights))
        async with self._workers_lock:
            if self.weights.session is None:
                await self.engine.workers("leave")
        return self.message()

    def renew(self, request: RenewRequest) -> WeightState:
        """Start the lease again, and note a canary that agreed. Raises Refusal (409) for another session."""
        self._renew(request.session)
        if request.canary_agreed is not None:
            self.weights = weight_state.canary_agreed(self.weights, version=request.canary_agreed)
        return self.message()

    async def begin(self, request: BeginRequest) -> WeightState:
        """Prepare every worker for bucket 0, and freeze sampling unless an adapter is pushed.

        Raises Refusal: 409 state, 422 manifest, 503 failed; those of `Adapters.check`.
        """
        self._renew(request.session)
        await self._check(request)
        if self._recoveries:
            # Wait for the workers to report whether the group survived the previous push.
            await asyncio.wait(self._recoveries)
            self._require_session(request.session)
        loading, push = weight_state.begin(
            self.weights,
            version=request.version,
            deadline_s=request.deadline_s,
            now_s=time.monotonic(),
            kind=request.kind,
        )
        self._set(loading)
        self._receiving = None
        # Bound the push: a trainer that disappears before its commit must not leave the server waiting.
        reason = f"the push of version {push.version} did not commit within {request.deadline_s:g} s"
        self._deadline = asyncio.get_running_loop().call_later(request.deadline_s, self.fail, push, reason)
        try:
            async with self._workers_lock:
                options = await self._prepare(push, request)
                await self.engine.workers("begin", push.number, request.model_dump_json(), options)
        except (WorkerError, EngineDiedError) as error:
            self.fail(push, f"the push of version {push.version} could not begin: {error}")
        self._require_session(request.session)
        if self.weights.push is not push:
            raise weight_state.not_begun(self.weights)
        if push.kind == "full":
            self._overwritten.update(spec.name for spec in request.manifest.tensors)
        self._receiving = asyncio.create_task(self._receive(push, request.manifest))
        return self.message()

    async def _check(self, request: BeginRequest) -> None:
        """Raises Refusal for a push of something that this server cannot serve."""
        if request.kind == "lora":
            if self.adapters is None:
                raise Refusal.invalid(
                    "adapters_not_enabled", "this server takes no adapters", "start the server with --enable-lora"
                )
            try:
                await self.adapters.check(request)
            except WorkerError as error:
                raise Refusal.invalid("adapter_mismatch", f"the adapter cannot be checked: {error}") from error
            self._require_session(request.session)
            return
        if isinstance(self.tensors, str):
            raise Refusal.invalid(
                "unknown_tensors",
                f"the tensors of the served checkpoint cannot be listed: {self.tensors}",
                "serve a checkpoint in safetensors, of an architecture that transformers knows",
            )
        check_manifest(request.manifest, request.absent, self.tensors.expected, overwritten=self._overwritten)

    async def _prepare(self, push: Push, request: BeginRequest) -> dict[str, Any]:
        """Return what the workers' loader needs besides the tensors. Freeze sampling for a push of all weights."""
        if push.kind == "lora" and self.adapters is not None:
            version = self.adapters.start(push)
            return {"name": version.lora_name, "int_id": version.lora_int_id, "path": version.lora_path}
        if self.adapters is not None and self.adapters.newest is not None:
            # Abort sequences of an earlier session's adapters: they do not fit other weights.
            self.adapters.withdraw()
            await self.engine.abort_all()
        # Recompute at the first push of a session: the weights before it may be anything.
        await self.engine.pause(request.kv_cache if self.weights.are_of(push.session) else "recompute")
        return {"unknown": [] if isinstance(self.tensors, str) else self.tensors.unknown}

    async def _receive(self, push: Push, manifest: Manifest) -> Reception:
        """Have the workers load all buckets. A failure ends the push and is not raised."""
        reception = Reception(push, time.monotonic(), sum(manifest.bucket_bytes))
        num_buckets, num_loaded = len(manifest.bucket_bytes), 0
        try:
            while num_loaded < num_buckets and self.weights.push is push:
                before, num_loaded = num_loaded, min(await self.engine.workers("receive", push.number))
                if push.kind == "lora" and num_loaded == before:
                    await asyncio.sleep(ARRIVAL_POLL_S)
        except (WorkerError, EngineDiedError) as error:
            self.fail(push, f"the push of version {push.version} broke off: {error}")
        except BaseException as error:
            self.fail(push, f"receiving version {push.version} failed with {error!r}")
            raise
        return reception

    async def commit(self, request: CommitRequest) -> WeightState:
        """Verify and serve the push. Raises Refusal: 409 state, 422 another digest, 504 buckets that are late."""
        self._renew(request.session)
        push = weight_state.check_commit(self.weights, version=request.version, digest=request.digest)
        if push is None:
            return self.message()
        if self._receiving is None:
            raise Refusal.conflict("not_loading", "begin has not answered yet", "wait for its answer")
        done, _ = await asyncio.wait((self._receiving,), timeout=request.deadline_s)
        if not done:
            raise Refusal.busy(
                504, "still_receiving", f"not all buckets have arrived after {request.deadline_s:g} s", 1.0
            )
        reception = self._receiving.result()
        try:
            async with self._workers_lock:
                if weight_state.check_commit(self.weights, version=request.version, digest=request.digest) is None:
                    return self.message()
                answers = await self.engine.workers("finish", push.number)
                self._check_digests(push, [digest for digest, _ in answers], request.digest)
                if self.weights.push is push and push.kind == "full":
                    await self.engine.resume(push.version)
        except (WorkerError, EngineDiedError) as error:
            self.fail(push, f"version {push.version} could not be served: {error}")
            raise Refusal.conflict(
                "not_loading", self.weights.reason or "another push has begun", "begin a new push"
            ) from error
        seconds = time.monotonic() - reception.started_s
        self._set(
            weight_state.commit(
                self.weights,
                push,
                digest=request.digest,
                num_bytes=reception.num_bytes,
                seconds=seconds,
                probed=all(probed for _, probed in answers),
            )
        )
        if push.kind == "lora" and self.adapters is not None:
            self.adapters.publish()
        self._unload_unused()
        metrics.count_push("committed", seconds=seconds, num_bytes=reception.num_bytes)
        logger.info("version %d: %d bytes in %.3f s", push.version, reception.num_bytes, seconds)
        return self.message()

    def _check_digests(self, push: Push, digests: list[str], sent: str) -> None:
        if any(digest != sent for digest in digests):
            reason = f"digest mismatch for version {push.version}: sent {sent}, received {', '.join(digests)}"
            self.fail(push, reason)
            raise Refusal.invalid(
                "digest_mismatch", reason, "push again: the received bytes differ from the sent bytes"
            )

    async def abort(self, request: AbortRequest) -> WeightState:
        """Abort the push under way, if there is one. Raises Refusal (409) for another session."""
        self._renew(request.session)
        if self.weights.push is not None:
            self.fail(self.weights.push, request.reason)
        if self._receiving is not None:
            await asyncio.wait((self._receiving,), timeout=ABORT_TIMEOUT_S)
        return self.message()

    def fail(self, push: Push, reason: str) -> None:
        """End `push`; the weights are stale then, unless it is of an adapter. Does nothing when it is not under way."""
        if self.weights.push is push:
            self._set(weight_state.fail(self.weights, reason))

    def _set(self, weights: Weights) -> None:
        """Enter the next state. After a failed push repair the workers; when the weights are stale abort all sequences,
        those that the push had frozen once no other can commit in time."""
        before, self.weights = self.weights, weights
        metrics.set_weight_state(weights.state, weights.version)
        if weights.push is None and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        failed = before.push if weights.push is None and weights.reason is not None else None
        if failed is not None:
            metrics.count_push("failed")
        self._watch_frozen(weights.frozen_until_s)
        if weights.state == "stale" and before.state != "stale":
            logger.error("weights are stale: %s", weights.reason)
            run_in_background(self._recover(failed), self._recoveries)
        elif weights.state == "stale" and before.frozen_until_s is not None and weights.frozen_until_s is None:
            run_in_background(self._recover(None), self._recoveries)
        elif failed is not None:
            logger.error("the adapter before it stays: %s", weights.reason)
            run_in_background(self._recover_from_adapter(failed), self._recoveries)

    def _watch_frozen(self, until_s: float | None) -> None:
        """Give up the frozen sequences of a failed push at `until_s`."""
        if self._frozen is not None:
            self._frozen.cancel()
            self._frozen = None
        if until_s is not None:
            left_s = max(until_s - time.monotonic(), 0.0)
            self._frozen = asyncio.get_running_loop().call_later(
                left_s, lambda: self._set(weight_state.give_up_frozen(self.weights))
            )

    async def _recover(self, push: Push | None) -> None:
        """Abort all sequences that no other push may go on with, and have the workers drop `push`."""
        try:
            await self._abort_given_up()
            if push is not None:
                await self._drop(push)
            # Again, for requests that came in while the state changed.
            await self._abort_given_up()
        except (WorkerError, EngineDiedError) as error:
            logger.error("recovery failed: %s", error)

    async def _abort_given_up(self) -> None:
        if self.weights.state == "stale" and self.weights.frozen_until_s is None:
            await self.engine.abort_all()

    async def _recover_from_adapter(self, push: Push) -> None:
        """Have the workers drop `push`, and unload its adapter if it came that far."""
        try:
            await self._drop(push)
        except (WorkerError, EngineDiedError) as error:
            logger.error("recovery failed: %s", error)
        if self.adapters is not None:
            self.adapters.abandon()
        await self._unload()

    async def _drop(self, push: Push) -> None:
        async with self._workers_lock:
            group_kept = all(await self.engine.workers("recover", push.number))
        if not group_kept:
            self.weights = weight_state.set_group(self.weights, push.session, has_group=False)

    def _unload_unused(self) -> None:
        run_in_background(self._unload(), self._unloads)

    async def _unload(self) -> None:
        """Unload the adapter versions that no request uses."""
        if self.adapters is not None:
            try:
                await self.adapters.unload_unused()
            except (WorkerError, EngineDiedError) as error:
                logger.error("adapters could not be unloaded: %s", error)

    def _renew(self, session: int) -> None:
        self.weights = weight_state.renew(self.weights, session=session, now_s=time.monotonic())

    def _require_session(self, session: int) -> None:
        weight_state.require_session(self.weights, session)


def run_in_background(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Run `work`, and keep its task in `tasks` until it is done: asyncio itself does not keep tasks alive."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
