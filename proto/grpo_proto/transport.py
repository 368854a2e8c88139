"""Move weights: buckets, their digest, and the process group that broadcasts them.

Both ends use it. The trainer copies tensors into a staging buffer and broadcasts the buffer bucket by bucket; every
worker of every rollout server receives into its own buffer and views the tensors in it. Nothing is pickled.
"""

import ctypes
import hashlib
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, ProcessGroup, ProcessGroupGloo, Work

from .gloo_connections import GlooStore, KeyStore, new_listener, shut_connections
from .lifeline import Lifeline
from .messages.weights import DTYPE_BYTES, Backend, Manifest, TensorSpec

ALIGNMENT_BYTES = 16
DEFAULT_BUCKET_BYTES = 64 * 2**20
POLL_S = 0.001
"""Longest pause between two looks at a broadcast."""


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` → `bfloat16`, as a manifest names it."""
    return str(dtype).removeprefix("torch.")


def plan_manifest(
    tensors: Iterable[tuple[str, str, Sequence[int]]], bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> Manifest:
    """Lay (name, dtype, shape) triples into buckets, in order. A tensor larger than a bucket fills its own."""
    specs: list[TensorSpec] = []
    sizes: list[int] = [0]
    for name, dtype, shape in tensors:
        num_bytes = DTYPE_BYTES[dtype] * math.prod(shape)
        if sizes[-1] > 0 and sizes[-1] + num_bytes > bucket_bytes:
            sizes.append(0)
        specs.append(TensorSpec(name=name, dtype=dtype, shape=list(shape), bucket=len(sizes) - 1, offset=sizes[-1]))
        sizes[-1] += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Manifest(tensors=specs, bucket_bytes=sizes)


def view_tensor(buffer: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor `spec` describes, as a view into a bucket's uint8 buffer."""
    flat = buffer[spec.offset : spec.offset + spec.num_bytes]
    return flat.view(getattr(torch, spec.dtype)).view(spec.shape)


class Digest:
    """Digest over the buckets of one push: per bucket two 64-bit sums, then SHA-256 over all of them.

    A bucket is read as little-endian int64 words x_i. The sums are Σ x_i and Σ (2i+1)·x_i modulo 2⁶⁴. The weights are
    odd, so a change of any single word always changes the second sum; the same integer arithmetic on CPU and GPU gives
    the same result. The digest finds what a transfer breaks (lost, repeated, reordered, flipped bytes). It is no
    defence against an attacker who chooses the bytes.

    With i = r·W + c the second sum is Σ_r 2rW·(row sum r) + Σ_c (2c+1)·(column sum c): two plain reductions instead of
    a product as large as the bucket. On a CPU both run block by block, so that the second finds the words in cache.
    """

    ROW_WORDS = 1024
    CPU_BLOCK_ROWS = 128

    def __init__(self, max_bucket_bytes: int, device: torch.device | str):
        max_rows = max_bucket_bytes // 8 // self.ROW_WORDS
        self._block_rows = self.CPU_BLOCK_ROWS if torch.device(device).type == "cpu" else max(1, max_rows)
        self._row_weights = torch.arange(max_rows, dtype=torch.int64, device=device) * (2 * self.ROW_WORDS)
        self._column_weights = torch.arange(1, 2 * self.ROW_WORDS, 2, dtype=torch.int64, device=device)
        self._row_sums = torch.empty(max_rows, dtype=torch.int64, device=device)
        self._sums: list[torch.Tensor] = []

    def add(self, bucket: torch.Tensor) -> None:
        """Add the next bucket: uint8, a multiple of `ALIGNMENT_BYTES` long, on this digest's device."""
        words = bucket.view(torch.int64)
        num_rows = words.numel() // self.ROW_WORDS
        head, tail = (
            words[: num_rows * self.ROW_WORDS].view(num_rows, self.ROW_WORDS),
            words[num_rows * self.ROW_WORDS :],
        )
        row_sums = self._row_sums[:num_rows]
        column_sums = torch.zeros_like(self._column_weights)
        for start in range(0, num_rows, self._block_rows):
            block = head[start : start + self._block_rows]
            torch.sum(block, 1, out=row_sums[start : start + self._block_rows])
            column_sums += block.sum(0)
        tail_weights = self._column_weights[: tail.numel()] + 2 * num_rows * self.ROW_WORDS
        weighted = (row_sums * self._row_weights[:num_rows]).sum() + (column_sums * self._column_weights).sum()
        self._sums.append(torch.stack([row_sums.sum() + tail.sum(), weighted + (tail * tail_weights).sum()]))

    def hexdigest(self) -> str:
        """The digest of all buckets so far; it covers their number and order."""
        sums = [tuple(pair) for pair in torch.stack(self._sums).tolist()] if self._sums else []
        return hashlib.sha256(repr(sums).encode()).hexdigest()


def address_towards(host: str, port: int) -> str:
    """This machine's own address on the route to `host`. Sends nothing. Raises OSError when there is no route."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def gpu_uuid() -> str | None:
    """The UUID of the GPU that this thread computes on; None without a GPU. Unlike a GPU's number, it is unique."""
    return str(torch.cuda.get_device_properties().uuid) if torch.cuda.is_available() else None


def nccl_version() -> str | None:
    """Version of the NCCL library in this process; None in a build of torch without NCCL.

    Asks the library itself: torch reports the version of the header it was built with, and images replace the wheel
    beside it (2.29.7 is built in, 2.30.7 is loaded).
    """
    if not torch.distributed.is_nccl_available():
        return None
    code = ctypes.c_int()
    with suppress(OSError, AttributeError):  # torch with NCCL linked in loads no such file
        loaded = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        if loaded.ncclGetVersion(ctypes.byref(code)) == 0:
            return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"
    return ".".join(map(str, torch.cuda.nccl.version()))


_process_wide = threading.Lock()


@contextmanager
def nccl_errors_are_raised() -> Iterator[None]:
    """Make an NCCL group in this context: its waits block, and raise when a peer has gone.

    Without it PyTorch's watchdog of the group ends the whole process then. DeepSpeed's own group keeps its watchdog.

    One thread at a time: PyTorch reads the setting from an environment variable. A second thread would take the first
    thread's value for the original, and leave it behind.
    """
    name = "TORCH_NCCL_BLOCKING_WAIT"
    with _process_wide:
        before = os.environ.get(name)
        os.environ[name] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


class Transfer:
    """A broadcast under way. Leave its bucket alone until `wait` has returned."""

    def __init__(self, work: Work, timeout_s: float):
        self._work = work
        self._timeout_s = timeout_s
        self.started_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether `wait` returns or raises at once: the broadcast is complete, or it has failed."""
        return bool(self._work.is_completed())

    def is_over_by(self, until_s: float) -> bool:
        """Wait for the end until `until_s` of the monotonic clock. Returns whether it is over, and ends nothing if not.

        Polls: a wait that is cut short would make NCCL abort the group.
        """
        pause_s = 0.0001
        while not self.is_over():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, POLL_S)
        return True

    def wait(self) -> None:
        """Block until the broadcast is complete. Raises RuntimeError after the timeout, or when a peer has gone."""
        if not self._work.wait(timedelta(seconds=self._timeout_s)):
            raise RuntimeError(f"the broadcast of a bucket did not end within {self._timeout_s:g} s")


class WeightGroup:
    """The process group of one session: the trainer is rank 0, the workers of the rollout servers are the others.

    Built directly on the backend's class, without a default process group: vLLM's and DeepSpeed's own groups stay
    separate from this group. It forms with the keys of `lifeline`, and its operations end with it, whatever their own
    limit: see `end`. After that, or after a timeout, the group is unusable: make a new one under a new session number.

    `address` is this machine's own, on the interface that Gloo listens on. By default Gloo would resolve the host name,
    which many machines map to loopback. NCCL reads NCCL_SOCKET_IFNAME instead.

    Raises RuntimeError when not all members joined within `timeout_s`. NCCL may wait for ever instead, for a member
    that joined and died: make the group in a thread that can be abandoned.
    """

    def __init__(
        self,
        lifeline: Lifeline,
        *,
        rank: int,
        world_size: int,
        backend: Backend,
        timeout_s: float,
        address: str = "127.0.0.1",
    ):
        timeout = timedelta(seconds=timeout_s)
        self.backend = backend
        self._ending = threading.Lock()
        self._group: ProcessGroup | None
        if backend == "nccl":
            from torch.distributed import ProcessGroupNCCL

            self._store = KeyStore(lifeline, timeout_s)
            with nccl_errors_are_raised():
                self._group = ProcessGroupNCCL(self._store, rank, world_size, timeout)
            lifeline.when_ended(self.end)
            self._connect(timeout_s)
        else:
            options = ProcessGroupGloo._Options()
            device, own = new_listener(lambda: ProcessGroupGloo.create_device(hostname=address))
            options._devices, options._timeout = [device], timeout
            self._store = GlooStore(lifeline, timeout_s, own)
            self._group = ProcessGroupGloo(self._store, rank, world_size, options)
            lifeline.when_ended(self.end)

    def _connect(self, timeout_s: float) -> None:
        """Run a first collective, in which NCCL connects the members.

        A missing member blocks the others in it: let that happen here, under a timeout, and not at the first bucket.
        """
        try:
            self.try_bucket(ALIGNMENT_BYTES, torch.device("cuda"), timeout_s=timeout_s)
        except RuntimeError:
            self.close()
            raise

    def try_bucket(self, num_bytes: int, device: torch.device, *, timeout_s: float) -> None:
        """Broadcast a bucket of zeros from rank 0. Raises RuntimeError when it is not over within `timeout_s`."""
        self.broadcast(torch.zeros(num_bytes, dtype=torch.uint8, device=device), timeout_s=timeout_s)

    def start_broadcast(self, bucket: torch.Tensor, *, timeout_s: float) -> Transfer:
        """Start to broadcast `bucket` from rank 0, in place. Several may be under way, in one order on all ranks."""
        if self._group is None:
            raise RuntimeError("this weight group is closed")
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=timeout_s)
        return Transfer(self._group.broadcast([bucket], options), timeout_s)

    def broadcast(self, bucket: torch.Tensor, *, timeout_s: float) -> None:
        """Broadcast `bucket` from rank 0, in place, and wait for it. Raises RuntimeError after `timeout_s`."""
        self.start_broadcast(bucket, timeout_s=timeout_s).wait()

    def end(self) -> None:
        """Have every operation under way raise at once, from any thread: the group is unusable afterwards.

        `abort` does it with NCCL. With Gloo it frees nobody before the operation's own limit; a connection that is shut
        down does.
        """
        with self._ending:
            if self._group is None:
                return
            if self.backend == "nccl":
                self._group.abort()
            elif isinstance(self._store, GlooStore):
                shut_connections(self._store.own, self._store.peers)

    def close(self) -> None:
        """Leave the group; a second call does nothing. A broadcast raises here and on the peers that wait in it."""
        self.end()
        with self._ending:
            self._group = None
