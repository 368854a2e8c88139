"""Moving weights: buckets, their digest, and the process group they travel in. The only module here that needs torch.

Both ends use it. The trainer copies tensors into a staging buffer and broadcasts it bucket by bucket; every worker of
every rollout server receives into a buffer of its own and views the tensors in it. Nothing is pickled.
"""

import ctypes
import hashlib
import math
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroup, ProcessGroupGloo, TCPStore, Work

from .messages.weights import DTYPE_BYTES, Backend, Manifest, TensorSpec

ALIGNMENT_BYTES = 16
DEFAULT_BUCKET_BYTES = 64 * 2**20


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` → `bfloat16`, as a manifest names it."""
    return str(dtype).removeprefix("torch.")


def plan_manifest(
    tensors: Iterable[tuple[str, str, Sequence[int]]], bucket_bytes: int = DEFAULT_BUCKET_BYTES
) -> Manifest:
    """Lay (name, dtype, shape) triples into buckets, in their order. A tensor larger than a bucket gets its own."""
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
    the same result. It finds what a transfer breaks (lost, repeated, reordered, flipped bytes); it is no defence
    against somebody who chooses the bytes.

    With i = r·W + c the second sum is Σ_r 2rW·(row sum r) + Σ_c (2c+1)·(column sum c): two plain reductions instead of
    a product as large as the bucket. On a CPU they run block by block, so that the second one finds the words in cache.
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
        """Take in the next bucket: uint8, a multiple of `ALIGNMENT_BYTES` long, on this digest's device."""
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
        """The digest of all buckets so far, with their number and order."""
        sums = [tuple(pair) for pair in torch.stack(self._sums).tolist()] if self._sums else []
        return hashlib.sha256(repr(sums).encode()).hexdigest()


def address_towards(host: str, port: int) -> str:
    """This machine's own address on the way to `host`. Sends nothing. Raises OSError when there is no way."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def gpu_uuid() -> str | None:
    """The UUID of the GPU this thread computes on; None without one. Unlike its number, it is the same everywhere."""
    return str(torch.cuda.get_device_properties().uuid) if torch.cuda.is_available() else None


def nccl_version() -> str | None:
    """Version of the NCCL library in this process; None in a build of torch that has none.

    Asked of the library itself: torch tells the version of the header it was built with, and images replace the wheel
    beside it (2.29.7 is built in, 2.30.7 is loaded).
    """
    if not torch.distributed.is_nccl_available():
        return None
    code = ctypes.c_int()
    with suppress(OSError, AttributeError):  # a torch that has NCCL inside has loaded no such file
        loaded = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        if loaded.ncclGetVersion(ctypes.byref(code)) == 0:
            return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"
    return ".".join(map(str, torch.cuda.nccl.version()))


_process_wide = threading.Lock()


@contextmanager
def nccl_errors_are_raised() -> Iterator[None]:
    """An NCCL group that is made in this context has waits that block, and raise what went wrong.

    Otherwise PyTorch has a watchdog for the group, which ends the whole process when a peer is gone. DeepSpeed's own
    group keeps its one. PyTorch knows the setting as a variable of the whole process only: one at a time is in here, or
    a second one would take the first one's value for the one of before, and leave it behind.
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


def joined_key(session: int, rank: int) -> str:
    """What a worker sets in the store when it has reached it: who is missing is told from who cannot be connected."""
    return f"grpo-joined/{session}/{rank}"


class Transfer:
    """A broadcast under way. Nobody may touch its bucket before `wait` has returned."""

    def __init__(self, work: Work, timeout_s: float):
        self._work = work
        self._timeout_s = timeout_s

    def wait(self) -> None:
        """Block until the bucket is there. Raises RuntimeError after the time-out or when a peer has gone."""
        if not self._work.wait(timedelta(seconds=self._timeout_s)):
            raise RuntimeError(f"the broadcast of a bucket did not end within {self._timeout_s:g} s")


class WeightGroup:
    """The process group of one session: the trainer is rank 0, the workers of the rollout servers are the others.

    Built directly on the backend's class: no default process group is touched, so that vLLM's and DeepSpeed's own
    groups never meet this one. After a time-out the group is unusable: make a new one under a new session number.

    `address` is this machine's own, of the interface Gloo listens on; left alone Gloo takes the host name's, which many
    machines resolve to loopback. NCCL has NCCL_SOCKET_IFNAME for that.

    Raises `torch.distributed.DistStoreError` or RuntimeError when not all members came within `timeout_s`. NCCL may
    wait for ever instead, for a member that met the others and died: make it in a thread that nobody has to wait for.
    """

    def __init__(
        self,
        store: TCPStore,
        *,
        session: int,
        rank: int,
        world_size: int,
        backend: Backend,
        timeout_s: float,
        address: str = "127.0.0.1",
    ):
        timeout = timedelta(seconds=timeout_s)
        # A connection of its own: a group that waits in vain for its members blocks every other user of its connection.
        own_store = store.clone()
        # A store waits for 300 s unless told otherwise, whatever the time-out of the group.
        own_store.set_timeout(timeout)
        prefixed = PrefixStore(f"grpo-weights/{session}", own_store)
        self.backend = backend
        self._group: ProcessGroup | None
        if backend == "nccl":
            from torch.distributed import ProcessGroupNCCL

            with nccl_errors_are_raised():
                self._group = ProcessGroupNCCL(prefixed, rank, world_size, timeout)
            self._connect(timeout_s)
        else:
            options = ProcessGroupGloo._Options()
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
            options._timeout = timeout
            self._group = ProcessGroupGloo(prefixed, rank, world_size, options)

    def _connect(self, timeout_s: float) -> None:
        """NCCL meets at its first collective, and a member that does not come keeps the others in there: have it here,
        where nobody waits without a bound, and not at the first bucket."""
        try:
            self.broadcast(torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8, device="cuda"), timeout_s=timeout_s)
        except RuntimeError:
            self.close()
            raise

    def start_broadcast(self, bucket: torch.Tensor, *, timeout_s: float) -> Transfer:
        """Begin to broadcast `bucket` from rank 0, in place; several may be under way, in the same order everywhere."""
        if self._group is None:
            raise RuntimeError("this weight group is closed")
        options = BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=timeout_s)
        return Transfer(self._group.broadcast([bucket], options), timeout_s)

    def broadcast(self, bucket: torch.Tensor, *, timeout_s: float) -> None:
        """Broadcast `bucket` from rank 0, in place, and wait for it. Raises RuntimeError after `timeout_s`."""
        self.start_broadcast(bucket, timeout_s=timeout_s).wait()

    def close(self) -> None:
        """Leave the group; a second call does nothing. A peer that waits in a broadcast gets an error.

        With Gloo this blocks while a broadcast of our own is still under way, until that one's time-out.
        """
        group, self._group = self._group, None
        if group is not None and self.backend == "nccl":
            group.abort()
