"""Export the weights for a push: gather named tensors bucket by bucket into two alternating staging buffers.

While a bucket is broadcast, the next is gathered and digested; except under ZeRO-3 over NCCL, where a gather waits for
the GPU. The buffers are kept from push to push: the first touch of fresh memory costs more than the copy into it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from grpo_proto import Manifest
from grpo_proto.messages.weights import Kind
from grpo_proto.transport import dtype_name, view_tensor

from ..lora.merging import LowRankDelta
from .deepspeed_settings import full_shape

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]


class Export:
    """The named tensors of a push.

    Args:
        kind: how the servers load the tensors: `full`, every parameter of the model, or `lora`, those of an adapter.
        tensors: by their names in a Hugging Face checkpoint, without tied names; an adapter's by PEFT's saved names.
        device: where the tensors are.
        gather: a context in which its tensors are whole; under ZeRO-3 a collective of all ranks.
        sharded: whether `gather` is a collective.
        fills: whether this rank fills buckets; otherwise it only helps to gather.
        beat: called after each bucket.
        deltas: what an adapter adds to some of the tensors of a `full` push, which sends the sum.
        peft_config, base_digest: of a `lora` push, see `BeginRequest`.
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
        deltas: Mapping[str, LowRankDelta] | None = None,
        peft_config: dict[str, Any] | None = None,
        base_digest: str | None = None,
    ):
        self.kind, self.device, self.sharded = kind, device, sharded
        self.peft_config, self.base_digest = peft_config, base_digest
        self._deltas = deltas or {}
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
            with self._gather([part for spec in specs for part in self._parts(spec.name)]):
                if self._fills:
                    # Copy, never keep a view: a gathered tensor's memory is freed when the context ends.
                    for spec in specs:
                        view_tensor(buffer, spec).copy_(self._value(spec.name))
            self._beat()
            yield buffer

    def _parts(self, name: str) -> list[torch.Tensor]:
        """Return the parameters that the value of `name` is computed from."""
        return [self._tensors[name], *(self._deltas[name].factors if name in self._deltas else [])]

    def _value(self, name: str) -> torch.Tensor:
        weight = self._tensors[name].data
        return self._deltas[name].added_to(weight) if name in self._deltas else weight

    def _make_staging(self, num_bytes: int, device: torch.device) -> None:
        if self._staging and self._staging[0].numel() >= num_bytes and self._staging[0].device.type == device.type:
            return
        # Pin the memory: copies from a GPU into pinned memory are several times as fast.
        pinned = device.type == "cpu" and torch.cuda.is_available()
        self._staging = [torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=pinned) for _ in range(2)]
