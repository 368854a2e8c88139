"""Export the weights for a push: gather named tensors bucket by bucket into two alternating staging buffers.

While a bucket is broadcast, the next is gathered and digested; except under ZeRO-3 over NCCL, where a gather waits for
the GPU. The buffers are kept from push to push: the first touch of fresh memory costs more than the copy into it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import torch

from grpo_proto import Manifest
from grpo_proto.messages.weights import Kind
from grpo_proto.transport import dtype_name, view_tensor

from .deepspeed_settings import full_shape

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]


class Export:
    """The named tensors of a push.

    Args:
        kind: how the servers load the tensors: `full`, every parameter of the model.
        tensors: by their names in a Hugging Face checkpoint, without tied names.
        device: where the tensors are.
        gather: a context in which its tensors are whole; under ZeRO-3 a collective of all ranks.
        sharded: whether `gather` is a collective.
        fills: whether this rank fills buckets; otherwise it only helps to gather.
        beat: called after each bucket.
    """

    def __init__(
        self,
        kind: Kind,
        tensors: Mapping[str, torch.Tensor],
        *,
        device: torch.device,
        gather: Gather,
        sharded: bool,
        fills: bool,
        beat: Callable[[], None] = lambda: None,
    ):
        self.kind, self.device, self.sharded = kind, device, sharded
        self._tensors, self._gather, self._fills, self._beat = tensors, gather, fills, beat
        self._staging: list[torch.Tensor] = []

    def listed(self) -> list[tuple[str, str, list[int]]]:
        """Return name, dtype and whole shape of each tensor, in push order."""
        return [(name, dtype_name(tensor.dtype), full_shape(tensor)) for name, tensor in self._tensors.items()]

    def buckets(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]:
        """Yield the buckets of `manifest`: uint8 buffers on `device`, empty on a rank that only helps to gather.

        A Gloo broadcast needs them on `cpu`. A bucket stays unchanged until the next but one is requested. All
        ranks must iterate equally far.
        """
        if self._fills:
            self._make_staging(max(manifest.bucket_bytes), torch.device(device))
        for number, num_bytes in enumerate(manifest.bucket_bytes):
            specs = [spec for spec in manifest.tensors if spec.bucket == number]
            buffer = self._staging[number % 2][:num_bytes] if self._fills else torch.empty(0, dtype=torch.uint8)
            with self._gather([self._tensors[spec.name] for spec in specs]):
                if self._fills:
                    # Copy, never keep a view: a gathered tensor's memory is freed when the context ends.
                    for spec in specs:
                        view_tensor(buffer, spec).copy_(self._tensors[spec.name].data)
            self._beat()
            yield buffer

    def _make_staging(self, num_bytes: int, device: torch.device) -> None:
        if self._staging and self._staging[0].numel() >= num_bytes and self._staging[0].device.type == device.type:
            return
        # Pin the memory: copies from a GPU into pinned memory are several times as fast.
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self._staging = [torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned) for _ in range(2)]
