"""The weights on their way out: gathered bucket by bucket into two staging buffers that take turns.

While one bucket travels to the rollout servers, the next one is gathered and digested; not so under ZeRO-3 over NCCL,
where a gather waits for the GPU. The buffers are kept from push to push: the first touch of fresh memory costs more
than the copy into it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch

from grpo_proto import Manifest
from grpo_proto.transport import plan_manifest, view_tensor
from grpo_proto.weights import DTYPE_BYTES

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]

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


class OutgoingBuckets:
    """Fills buckets from `parameters`, by their names in the manifest.

    `gather` is a context in which the parameters given to it are whole, a collective of all ranks under ZeRO-3.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], gather: Gather, *, fills: bool):
        self._parameters, self._gather, self._fills = parameters, gather, fills
        self._staging: list[torch.Tensor] = []

    def fill(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]:
        """Bucket after bucket as `manifest` lays them out: uint8 buffers on `device`, empty on a rank that only helps
        to gather.

        A bucket stays as it is until the next but one is asked for. All ranks have to iterate to the end.
        """
        if self._fills:
            self._make_staging(max(manifest.bucket_bytes), torch.device(device))
        for number, num_bytes in enumerate(manifest.bucket_bytes):
            specs = [spec for spec in manifest.tensors if spec.bucket == number]
            buffer = self._staging[number % 2][:num_bytes] if self._fills else torch.empty(0, dtype=torch.uint8)
            with self._gather([self._parameters[spec.name] for spec in specs]):
                if self._fills:
                    # A gathered parameter's memory is gone when the context ends: copy, never keep a view.
                    for spec in specs:
                        view_tensor(buffer, spec).copy_(self._parameters[spec.name].data)
            yield buffer

    def _make_staging(self, num_bytes: int, device: torch.device) -> None:
        if self._staging and self._staging[0].numel() >= num_bytes and self._staging[0].device.type == device.type:
            return
        # Copies from a GPU are several times as fast into memory that cannot be paged out.
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self._staging = [torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned) for _ in range(2)]
