"""Lay the weights into buckets, and bound the time of a bucket."""

import math
from collections.abc import Iterable, Sequence

from grpo_proto import Manifest
from grpo_proto.messages.weights import DTYPE_BYTES, Backend
from grpo_proto.transport import plan_manifest

NUM_BUCKETS = 16
MIB = 2**20
LARGEST_MIB: dict[Backend, int] = {"gloo": 64, "nccl": 256}
"""Largest bucket of several tensors. Every side stages two buckets: in CPU memory with Gloo, and with NCCL on the GPU,
where the model leaves little room."""


def plan_push(tensors: Iterable[tuple[str, str, Sequence[int]]], bucket_mib: int | None, backend: Backend) -> Manifest:
    """Return the manifest for these (name, dtype, shape), which `backend` carries.

    Without `bucket_mib` a bucket is a sixteenth of the weights, between 24 MiB and `LARGEST_MIB`. Smaller buckets
    overlap better: filling the first bucket and loading the last overlap with nothing. But every bucket costs a call,
    and a fixed size of 64 MiB would make a thousand of a 64 GB model.
    """
    tensors = list(tensors)
    if bucket_mib is not None:
        return plan_manifest(tensors, bucket_mib * MIB)
    num_bytes = sum(DTYPE_BYTES[dtype] * math.prod(shape) for _, dtype, shape in tensors)
    return plan_manifest(tensors, min(max(num_bytes // NUM_BUCKETS, 24 * MIB), LARGEST_MIB[backend] * MIB))


def bucket_limit_s(manifest: Manifest, timeout_s: float, *, backend: Backend, push_deadline_s: float) -> float:
    """Return the timeout of this push's buckets: `timeout_s`, over Gloo scaled up where one is larger than 64 MiB.

    NCCL moves a GiB in a second; a scaled limit would only keep a member that hangs for minutes.
    """
    largest = max(manifest.bucket_bytes) / (LARGEST_MIB["gloo"] * MIB)
    return min(timeout_s * (max(1.0, largest) if backend == "gloo" else 1.0), push_deadline_s)
