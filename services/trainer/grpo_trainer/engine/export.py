"""The seam of what is pushed: named tensors, gathered bucket by bucket into two staging buffers that take turns.

While one bucket travels to the rollout servers, the next one is gathered and digested; not so under ZeRO-3 over NCCL,
where a gather waits for the GPU. The buffers are kept from push to push: the first touch of fresh memory costs more
than the copy into it.
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
    """Named tensors on their way to the rollout servers.

    Args:
        kind: what the servers load them as: `full`, every parameter of the model.
        tensors: by the names of a Hugging Face checkpoint, less tied names.
        device: where they are.
        gather: a context in which the tensors given to it are whole, a collective of all ranks under ZeRO-3.
        sharded: whether `gather` is one.
        fills: whether this rank fills buckets, or only helps to gather.
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
        """Name, dtype and whole shape of each tensor, in the order in which they are pushed."""
        return [(name, dtype_name(tensor.dtype), full_shape(tensor)) for name, tensor in self._tensors.items()]

    def buckets(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]:
        """Bucket after bucket as `manifest` lays them out: uint8 buffers on `device`, empty on a rank that only helps
        to gather. A Gloo broadcast needs them on `cpu`.

        A bucket stays as it is until the next but one is asked for. All ranks have to iterate to the end.
        """
        if self._fills:
            self._make_staging(max(manifest.bucket_bytes), torch.device(device))
        for number, num_bytes in enumerate(manifest.bucket_bytes):
            specs = [spec for spec in manifest.tensors if spec.bucket == number]
            buffer = self._staging[number % 2][:num_bytes] if self._fills else torch.empty(0, dtype=torch.uint8)
            with self._gather([self._tensors[spec.name] for spec in specs]):
                if self._fills:
                    # Copy, never keep a view: a gathered tensor's memory is gone when the context ends.
                    for spec in specs:
                        view_tensor(buffer, spec).copy_(self._tensors[spec.name].data)
            self._beat()
            yield buffer

    def _make_staging(self, num_bytes: int, device: torch.device) -> None:
        if self._staging and self._staging[0].numel() >= num_bytes and self._staging[0].device.type == device.type:
            return
        # Copies from a GPU are several times as fast into memory that cannot be paged out.
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self._staging = [torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned) for _ in range(2)]
