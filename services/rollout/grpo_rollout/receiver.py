"""Receive weights inside every vLLM worker, next to the model that they are loaded into.

`--worker-extension-cls` mixes `ReceiverExtension` into vLLM's worker; its one method passes a call on to `Receiver`.
`pushes.py` calls `receive` until all buckets are loaded. A call loads the buckets that arrive within a quarter of a
second, and the engine answers other calls in between. Every wait in this file needs its own timeout: with a timeout of
`collective_rpc`, the late answer would be taken for the answer to the next call.
"""

import logging
import os
import threading
import time
from typing import Any

import torch

from grpo_proto.lifeline import Member
from grpo_proto.messages.weights import BeginRequest, Kind, Manifest, SessionRequest, TensorSpec
from grpo_proto.staging import Staging
from grpo_proto.transport import (
    Digest,
    Transfer,
    WeightGroup,
    address_towards,
    gpu_uuid,
    nccl_version,
    view_tensor,
)

from .adapter_loader import AdapterLoader, Sizes
from .loaders import LOADERS, Loader
from .nccl_pins import without_nccl_pins

logger = logging.getLogger("vllm.grpo_rollout.receiver")

RECEIVE_S = 0.25
"""How long one call receives. Shorter costs throughput (1 to 3 ms a call); longer delays the engine's heartbeat."""


class ReceiverExtension:
    """Mixed into vLLM's worker class. Return `{"ok": …}` or `{"error": …}`, and never raise: that would leave the
    answers of the other workers in the queue."""

    def grpo_weights(self, call: str, *args: Any) -> dict[str, Any]:
        receiver = self.__dict__.setdefault("grpo_receiver", None)
        if receiver is None:
            receiver = self.grpo_receiver = Receiver(self)
        try:
            return {"ok": getattr(receiver, call)(*args)}
        except Exception as error:
            logger.exception("%s failed", call)
            end_if_gpu_is_lost(receiver.worker.device)
            return {"error": f"{type(error).__name__}: {error}"}


def end_if_gpu_is_lost(device: torch.device) -> None:
    """Exit this process when every CUDA call in it fails, as after an illegal access or a broken link.

    Only a new process gets the GPU back. vLLM would notice at its next step, but a server whose push failed makes no
    step: it would stay alive and useless. Query the stream, which waits for nothing, not even for a broadcast.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.current_stream(device).query()
    except Exception:
        logger.critical("CUDA fails for good in this process: exiting, and the server exits with it", exc_info=True)
        os._exit(1)


class IncomingPush:
    """A push under way: its manifest, who loads it, and the digest of the received bytes."""

    def __init__(self, number: int, loader: Loader, manifest: Manifest, device: torch.device, bucket_timeout_s: float):
        self.number, self.loader = number, loader
        self.bucket_bytes = manifest.bucket_bytes
        self.bucket_timeout_s = bucket_timeout_s
        self.tensors: list[list[TensorSpec]] = [[] for _ in manifest.bucket_bytes]
        for spec in manifest.tensors:
            self.tensors[spec.bucket].append(spec)
        self.digest = Digest(max(manifest.bucket_bytes), device)
        self.transfers: dict[int, Transfer] = {}
        self.num_loaded = 0


class Receiver:
    """Joins process groups and loads pushes. `worker` is vLLM's worker."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.group: WeightGroup | None = None
        self.member: Member | None = None
        self.session: int | None = None
        self.joining: threading.Thread | None = None
        self.join_error: str | None = None
        self.push: IncomingPush | None = None
        self.loaders: dict[Kind, Loader] = {kind: loader(worker) for kind, loader in LOADERS.items()}
        self.staging = Staging()

    def device(self) -> dict[str, str | None]:
        """Report the GPU and the NCCL version, from which a trainer chooses the backend."""
        return {"gpu": gpu_uuid(), "nccl": nccl_version()}

    # --- the process group -------------------------------------------------------------------------------------

    def join(self, request_json: str, timeout_s: float) -> None:
        """Start to join a group, in a thread, so that sampling goes on meanwhile. `joined` reports the outcome."""
        request = SessionRequest.model_validate_json(request_json)
        self.drop_push()
        self.leave()
        self.session, self.join_error = request.session, None

        def connect() -> None:
            try:
                # Leave the cores that vLLM binds the process of a CPU worker to. The group's threads inherit this
                # thread's cores, and would compete there with the loading of the previous bucket.
                os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
                member, group = self._connect(request, timeout_s)
            except Exception as error:
                if self.session == request.session:
                    self.join_error = f"{type(error).__name__}: {error}"
                return
            if self.session == request.session:
                self.member, self.group = member, group
            else:
                group.close()
                member.close()

        self.joining = threading.Thread(target=connect, name="grpo-join", daemon=True)
        self.joining.start()

    def _connect(self, request: SessionRequest, timeout_s: float) -> tuple[Member, WeightGroup]:
        """Join the session. Raises StrangerError, OSError or RuntimeError when it does not form."""
        device = self.worker.device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        host, port, rank = request.rendezvous.host, request.rendezvous.port, request.rank_offset + self.worker.rank
        member = Member(
            host, port, session=request.session, rank=rank, secret=request.secret, timeout_s=timeout_s,
            silence_s=request.silence_s,
        )  # fmt: skip
        try:
            with without_nccl_pins():
                group = WeightGroup(
                    member,
                    rank=rank,
                    world_size=request.world_size,
                    backend=request.backend,
                    timeout_s=timeout_s,
                    address=address_towards(host, port),
                )
            if request.trial_bytes:
                on = device if request.backend == "nccl" else torch.device("cpu")
                group.try_bucket(request.trial_bytes, on, timeout_s=timeout_s)
        except BaseException:
            member.close()
            raise
        return member, group

    def joined(self, session: int) -> bool:
        """Return whether the group has formed. Raises RuntimeError when joining has failed."""
        if self.session != session:
            raise RuntimeError(f"session {session} has been replaced")
        if self.join_error is not None:
            raise RuntimeError(self.join_error)
        return self.group is not None

    def leave(self) -> None:
        """Leave the group, in a thread: with NCCL it may take a while."""
        group, member = self.group, self.member
        self.group = self.member = self.session = None

        def close() -> None:
            if group is not None:
                group.close()
            if member is not None:
                member.close()

        if group is not None:
            threading.Thread(target=close, name="grpo-leave", daemon=True).start()

    # --- a push ------------------------------------------------------------------------------------------------

    def begin(self, number: int, request_json: str, options: dict[str, Any]) -> None:
        """Prepare the buffers and the model for bucket 0. `options` are those of the kind's loader."""
        self.drop_push()
        if self.group is None or self.member is None:
            raise RuntimeError("this worker is in no process group")
        self.member.watch(on=True)
        on_device = self.group.backend == "nccl"
        device = self.worker.device if on_device else torch.device("cpu")
        request = BeginRequest.model_validate_json(request_json)
        self._release_staging()  # of a push that broke off
        self.staging.prepare(request.manifest, device)
        loader = self.loaders[request.kind]
        self.push = IncomingPush(number, loader, request.manifest, device, request.bucket_timeout_s)
        loader.begin(request, **options)

    def receive(self, number: int) -> int:
        """Load the buckets that arrive within `RECEIVE_S` of the call, or that are there when the loader does not wait.

        Returns the number of buckets loaded so far: no call lasts long, so that an end of the push is heard in between.
        Raises RuntimeError for a bucket that is late.
        """
        push = self._running(number)
        until_s = time.monotonic() + RECEIVE_S
        while push.num_loaded < len(push.bucket_bytes):
            if not self._has_arrived(push, push.num_loaded, until_s if push.loader.waits else 0.0):
                break
            self._receive_bucket(push, push.num_loaded)
            push.num_loaded += 1
            if time.monotonic() >= until_s:
                break
        return push.num_loaded

    def _has_arrived(self, push: IncomingPush, bucket: int, until_s: float) -> bool:
        """Return whether a bucket has arrived, or is there by `until_s`. Raises RuntimeError once it is late."""
        self._start_transfer(push, bucket)
        transfer = push.transfers[bucket]
        if transfer.is_over_by(until_s):
            return True
        if time.monotonic() > transfer.started_s + push.bucket_timeout_s:
            self.leave()
            late = f"bucket {bucket} of {len(push.bucket_bytes)} did not arrive within {push.bucket_timeout_s:g} s"
            raise RuntimeError(late)
        return False

    def _receive_bucket(self, push: IncomingPush, bucket: int) -> None:
        """Load a bucket that has arrived. The next one is received meanwhile, where there is a buffer for it."""
        try:
            push.transfers[bucket].wait()
        except Exception as error:
            self.leave()
            raise RuntimeError(f"bucket {bucket} of {len(push.bucket_bytes)} did not arrive: {error}") from error
        del push.transfers[bucket]
        if bucket + 1 < len(push.bucket_bytes) and self.staging.overlap(bucket, bucket + 1):
            self._start_transfer(push, bucket + 1)
        try:
            self.load(push, bucket)
        except Exception as error:
            if self.member is not None:  # nobody else need wait for this worker
                self.member.fail(f"could not load bucket {bucket}: {type(error).__name__}: {error}")
            raise

    def load(self, push: IncomingPush, bucket: int) -> None:
        """Hand over the tensors of a bucket that has arrived."""
        buffer = self.staging.buffer(bucket)
        push.digest.add(buffer)
        push.loader.load(((spec.name, view_tensor(buffer, spec)) for spec in push.tensors[bucket]), buffer)

    def _start_transfer(self, push: IncomingPush, bucket: int) -> None:
        if bucket not in push.transfers:
            if self.group is None:
                raise RuntimeError("the process group is gone")
            buffer = self.staging.buffer(bucket)
            push.transfers[bucket] = self.group.start_broadcast(buffer, timeout_s=push.bucket_timeout_s)

    def finish(self, number: int) -> tuple[str, bool]:
        """Put the loaded layers in place, after the last bucket.

        Returns the digest of the received bytes, and whether a probe of every layer has shown that it serves them.
        """
        push = self._running(number)
        try:
            probed = push.loader.finish()
        finally:
            self.push = None
            self._release_staging()
            if self.member is not None:
                self.member.watch(on=False)
        return push.digest.hexdigest(), probed

    def _release_staging(self) -> None:
        """Give memory back to the GPU, also from torch's cache: vLLM may need it."""
        if self.staging.release():
            torch.cuda.empty_cache()

    def adapter_sizes(self, tensor_names: list[str]) -> dict[str, Sizes | None]:
        """Return the sizes of the layers that these tensors of an adapter belong to."""
        return self._adapters().sizes(tensor_names)

    def unload_adapters(self, int_ids: list[int]) -> int:
        """Unload these adapters. Return how many stay."""
        return self._adapters().unload(int_ids)

    def _adapters(self) -> AdapterLoader:
        loader = self.loaders["lora"]
        assert isinstance(loader, AdapterLoader)  # noqa: S101 - for the type checker
        return loader

    def recover(self, number: int) -> bool:
        """Make the model ready for the next push, after push `number` failed.

        Returns whether the process group is still usable.
        """
        end_if_gpu_is_lost(self.worker.device)
        if self.push is None or self.push.number == number:
            self.drop_push()  # also of a push that failed while its loader finished it
        return self.group is not None

    def drop_push(self) -> None:
        """Drop the push under way, if any. A transfer under way cannot be cancelled: leave the group as well."""
        if self.push is not None and self.push.transfers:
            self.leave()
            # A transfer may still write into its buffer, until the group has closed.
            self.staging = Staging()
        self.push = None
        if self.member is not None:
            self.member.watch(on=False)
        for loader in self.loaders.values():
            loader.drop()

    def _running(self, number: int) -> IncomingPush:
        if self.push is None or self.push.number != number:
            raise RuntimeError(f"push {number} is not under way on this worker")
        return self.push
