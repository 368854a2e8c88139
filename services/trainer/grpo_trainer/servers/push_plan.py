"""How the weights are laid into buckets, and how long a bucket may take."""

import math
from collections.abc import Iterable, Sequence

from grpo_proto import Manifest
from grpo_proto.messages.weights import DTYPE_BYTES
from grpo_proto.transport import plan_manifest

NUM_BUCKETS = 16
MIB = 2**20
LARGEST_MIB = {"gloo": 64, "nccl": 256}
"""Of buckets of several tensors. Staging on every side is two of them, on a GPU that a model nearly fills."""


def plan_push(
    tensors: Iterable[tuple[str, str, Sequence[int]]], bucket_mib: int | None, *, largest_mib: int = LARGEST_MIB["gloo"]
) -> Manifest:
    """The manifest for these (name, dtype, shape). Without `bucket_mib`, a sixteenth of the weights, 24 to
    `largest_mib`.

    The filling of the first bucket and the loading of the last overlap with nothing, and every bucket costs a call: of
    a model of 64 GB a thousand, if they did not grow with it.
    """
    tensors = list(tensors)
    if bucket_mib is not None:
        return plan_manifest(tensors, bucket_mib * MIB)
    num_bytes = sum(DTYPE_BYTES[dtype] * math.prod(shape) for _, dtype, shape in tensors)
    return plan_manifest(tensors, min(max(num_bytes // NUM_BUCKETS, 24 * MIB), largest_mib * MIB))


def bucket_limit_s(manifest: Manifest, timeout_s: float, *, push_deadline_s: float) -> float:
    """How long a bucket of this push may take: `timeout_s` is for one of 64 MiB, and a tensor may be larger."""
    return min(timeout_s * max(1.0, max(manifest.bucket_bytes) / (LARGEST_MIB["gloo"] * MIB)), push_deadline_s)
