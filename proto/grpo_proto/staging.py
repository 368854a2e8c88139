"""Hold the buffers of a push's buckets, at both of its ends: two that alternate, and a third for oversized buckets.

Memory is the constraint: vLLM has already taken all it was given, and does not count these buffers; on the trainer's
GPU they stand beside the optimizer. A tensor larger than a bucket gets a bucket for itself, and an embedding may have
3 GB: two buffers of that size would stay allocated.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from .messages.weights import Manifest


def turn_bytes(manifest: Manifest) -> int:
    """Return the size of the alternating buffers: that of the largest bucket with several tensors, if there is one."""
    counts = [0] * len(manifest.bucket_bytes)
    for spec in manifest.tensors:
        counts[spec.bucket] += 1
    shared = [size for size, count in zip(manifest.bucket_bytes, counts, strict=True) if count > 1]
    return max(shared or manifest.bucket_bytes)


def buckets_in_the_way(manifest: Manifest) -> set[int]:
    """Return the buckets that lie where the next one goes: of two oversized buckets in a row the first."""
    turn = turn_bytes(manifest)
    return {bucket for bucket, pair in enumerate(pairwise(manifest.bucket_bytes)) if min(pair) > turn}


def planned_bytes(manifest: Manifest) -> int:
    """Return the most that the buffers of a push take."""
    turn, largest = turn_bytes(manifest), max(manifest.bucket_bytes)
    return 2 * turn + (largest if largest > turn else 0)


class Staging:
    """The buffers of one member of a push. `pinned`: in memory that a GPU copies from several times as fast.

    Keep the two alternating buffers between pushes: the first touch of a fresh buffer costs more than the transfer.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._turns: list[torch.Tensor] = []
        self._large: torch.Tensor | None = None
        self._sizes: Sequence[int] = ()
        self._turn_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(int(buffer.numel()) for buffer in [*self._turns, *([] if self._large is None else [self._large])])

    @property
    def on_gpu(self) -> bool:
        return bool(self._turns) and self._turns[0].device.type == "cuda"

    def prepare(self, manifest: Manifest, device: torch.device) -> None:
        """Allocate the alternating buffers for the buckets of `manifest`, unless the present ones are large enough."""
        self._sizes, size = manifest.bucket_bytes, turn_bytes(manifest)
        is_elsewhere = bool(self._turns) and self._turns[0].device.type != device.type
        if self._large is not None and (is_elsewhere or self._large.numel() < max(self._sizes)):
            self._large = None
        if self._turn_bytes < size or is_elsewhere:
            self._turns = []  # free the old buffers first
            self._turns = [self._zeros(size, device) for _ in range(2)]
            self._turn_bytes = size

    def overlap(self, bucket: int, following: int) -> bool:
        """Return whether `following` may arrive while `bucket` loads. Not two large buckets: they share a buffer."""
        return min(self._sizes[bucket], self._sizes[following]) <= self._turn_bytes

    def buffer(self, bucket: int) -> torch.Tensor:
        """Return the memory of `bucket`.

        It is valid until the next bucket but one is requested; without `overlap`, until the next bucket is requested.
        """
        size = self._sizes[bucket]
        if size <= self._turn_bytes:
            return self._turns[bucket % 2][:size]
        if self._large is None:
            device = self._turns[0].device
            self._large = torch.empty(max(self._sizes), dtype=torch.uint8, device=device, pin_memory=self._pins(device))
        return self._large[:size]

    def release(self) -> bool:
        """Free the large buffer, when nothing is on its way any more. Return whether torch now caches it on a GPU."""
        large, self._large = self._large, None
        return large is not None and large.device.type == "cuda"

    def _zeros(self, size: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=device, pin_memory=self._pins(device))

    def _pins(self, device: torch.device) -> bool:
        return self._pinned and device.type == "cpu"
