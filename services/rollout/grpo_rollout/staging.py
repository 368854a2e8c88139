"""Where the buckets of a push come in: two buffers that take turns, and one more while larger tensors come.

A tensor larger than a bucket has a bucket of its own, and an embedding may have 3 GB: two buffers of that size would
stay beside a vLLM that has taken the memory it was given and does not know of them.
"""

from collections.abc import Sequence

import torch

from grpo_proto.messages.weights import Manifest


def turn_bytes(manifest: Manifest) -> int:
    """Size of the two buffers: of the largest bucket of several tensors, if there is one."""
    counts = [0] * len(manifest.bucket_bytes)
    for spec in manifest.tensors:
        counts[spec.bucket] += 1
    several = [size for size, count in zip(manifest.bucket_bytes, counts, strict=True) if count > 1]
    return max(several or manifest.bucket_bytes)


class Staging:
    """Of one worker. The two buffers are kept from push to push: the first touch of a fresh one costs more than the
    transfer into it."""

    def __init__(self) -> None:
        self._turns: list[torch.Tensor] = []
        self._large: torch.Tensor | None = None
        self._sizes: Sequence[int] = ()
        self._turn_bytes = 0

    @property
    def num_bytes(self) -> int:
        """What it holds now."""
        return sum(int(buffer.numel()) for buffer in [*self._turns, *([] if self._large is None else [self._large])])

    def prepare(self, manifest: Manifest, device: torch.device) -> None:
        """Make ready for the buckets of `manifest`."""
        self.release()
        self._sizes, size = manifest.bucket_bytes, turn_bytes(manifest)
        if self._turn_bytes < size or self._turns[0].device.type != device.type:
            self._turns = []  # the old ones go first
            self._turns = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
            self._turn_bytes = size

    def overlap(self, bucket: int, following: int) -> bool:
        """Whether `following` may come in while `bucket` is loaded: there is one large buffer."""
        return min(self._sizes[bucket], self._sizes[following]) <= self._turn_bytes

    def buffer(self, bucket: int) -> torch.Tensor:
        """Memory of `bucket`: its own until the next but one is asked for, or the next one that does not `overlap`."""
        size = self._sizes[bucket]
        if size <= self._turn_bytes:
            return self._turns[bucket % 2][:size]
        if self._large is None:
            self._large = torch.empty(max(self._sizes), dtype=torch.uint8, device=self._turns[0].device)
        return self._large[:size]

    def release(self) -> None:
        """Give the large buffer back at the end of a push; to the GPU, too, where vLLM may want it."""
        if self._large is not None:
            on_gpu = self._large.device.type == "cuda"
            self._large = None
            if on_gpu:
                torch.cuda.empty_cache()
