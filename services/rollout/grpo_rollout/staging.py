"""Hold the buffers that a push's buckets arrive in: two that alternate, and a third for oversized buckets.

Memory is the constraint: vLLM has already taken all it was given, and does not count these buffers. A tensor larger
than a bucket gets a bucket for itself, and an embedding may have 3 GB: two buffers of that size would stay allocated.
"""

from collections.abc import Sequence

import torch

from grpo_proto.messages.weights import Manifest


def turn_bytes(manifest: Manifest) -> int:
    """Return the size of the alternating buffers: that of the largest bucket with several tensors, if there is one."""
    counts = [0] * len(manifest.bucket_bytes)
    for spec in manifest.tensors:
        counts[spec.bucket] += 1
    shared = [size for size, count in zip(manifest.bucket_bytes, counts, strict=True) if count > 1]
    return max(shared or manifest.bucket_bytes)


class Staging:
    """The buffers of one worker.

    Keep the two alternating buffers between pushes: the first touch of a fresh buffer costs more than the transfer.
    """

    def __init__(self) -> None:
        self._turns: list[torch.Tensor] = []
        self._large: torch.Tensor | None = None
        self._sizes: Sequence[int] = ()
        self._turn_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(int(buffer.numel()) for buffer in [*self._turns, *([] if self._large is None else [self._large])])

    def prepare(self, manifest: Manifest, device: torch.device) -> None:
        """Allocate the alternating buffers for the buckets of `manifest`, unless the present ones are large enough."""
        self.release()
        self._sizes, size = manifest.bucket_bytes, turn_bytes(manifest)
        if self._turn_bytes < size or self._turns[0].device.type != device.type:
            self._turns = []  # free the old buffers first
            self._turns = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
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
            self._large = torch.empty(max(self._sizes), dtype=torch.uint8, device=self._turns[0].device)
        return self._large[:size]

    def release(self) -> None:
        """Free the large buffer at the end of a push, on a GPU also from torch's cache: vLLM may need the memory."""
        if self._large is not None:
            on_gpu = self._large.device.type == "cuda"
            self._large = None
            if on_gpu:
                torch.cuda.empty_cache()
