"""Export the weights for a push: make its tensors bucket by bucket, in two alternating staging buffers.

While a bucket is broadcast, the next is gathered and digested; except under ZeRO-3 over NCCL, where a gather waits for
the GPU, and of two oversized buckets in a row, which share a third buffer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch

from grpo_proto import Manifest
from grpo_proto.checkpoint_layout import Piece
from grpo_proto.messages.weights import Kind, TensorSpec
from grpo_proto.staging import Staging
from grpo_proto.transport import dtype_name, view_tensor

from ..lora.merging import LowRankDelta

Gather = Callable[[list[torch.Tensor]], AbstractContextManager[None]]


class Export:
    """The named tensors of a push.

    Args:
        kind: how the servers load the tensors: `full`, every parameter of the model, or `lora`, those of an adapter.
        pieces: the tensors to push, in the order of pushing, and what they are made of.
        sources: what the pieces are made of, by its name in the model.
        absent: tensors of the checkpoint that stay as they are, because they are frozen.
        device: where the sources are.
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
        pieces: Sequence[Piece],
        sources: Mapping[str, torch.Tensor],
        *,
        absent: Sequence[str] = (),
        device: torch.device,
        gather: Gather,
        sharded: bool,
        fills: bool,
        beat: Callable[[], None] = lambda: None,
        deltas: Mapping[str, LowRankDelta] | None = None,
        peft_config: dict[str, Any] | None = None,
        base_digest: str | None = None,
    ):
        self.kind, self.absent, self.device, self.sharded = kind, list(absent), device, sharded
        self.peft_config, self.base_digest = peft_config, base_digest
        self._pieces, self._sources, self._deltas = pieces, sources, deltas or {}
        self._gather, self._fills, self._beat = gather, fills, beat
        # Pin the memory: copies from a GPU into pinned memory are several times as fast.
        self._staging = Staging(pinned=torch.cuda.is_available())

    def listed(self) -> list[tuple[str, str, list[int]]]:
        """Return name, dtype and whole shape of each tensor, in push order."""
        return [
            (name, dtype_name(piece.dtype), list(shape))
            for piece in self._pieces
            for name, shape in piece.shapes.items()
        ]

    def buckets(self, manifest: Manifest, device: torch.device | str) -> Iterator[torch.Tensor]:
        """Yield the buckets of `manifest`: uint8 buffers on `device`, empty on a rank that only helps to gather.

        A Gloo broadcast needs them on `cpu`. A bucket stays unchanged until the next but one is requested; where both
        are oversized, until the next is (`staging.overlap`). All ranks must iterate equally far.
        """
        if self._fills:
            self._staging.prepare(manifest, torch.device(device))
        number = 0
        for pieces, specs in self._gathered_together(manifest):
            while number < specs[0].bucket:
                yield self._filled(number)
                number += 1
            with self._gather([part for piece in pieces for source in piece.sources for part in self._parts(source)]):
                made = self._made(pieces) if self._fills else {}
                for spec in specs:
                    while number < spec.bucket:  # a piece may be larger than a bucket
                        yield self._filled(number)
                        number += 1
                    if self._fills:
                        # Copy, never keep a view: a gathered tensor's memory is freed when the context ends.
                        view_tensor(self._staging.buffer(number), spec).copy_(made.pop(spec.name))
        yield self._filled(number)

    def release(self) -> None:
        """Free the buffer of oversized buckets on a GPU, after the last has arrived. In CPU memory it is kept: the
        first touch of fresh memory costs more than the copy into it."""
        if self._staging.on_gpu:
            self._staging.release()

    def _gathered_together(self, manifest: Manifest) -> Iterator[tuple[list[Piece], list[TensorSpec]]]:
        """All pieces that lie in one bucket, or a single piece that reaches beyond it; with their places."""
        place = {spec.name: spec for spec in manifest.tensors}
        specs = [[place[name] for name in piece.shapes] for piece in self._pieces]

        def shared_bucket(number: int) -> tuple[int, int]:
            first, last = specs[number][0].bucket, specs[number][-1].bucket
            return first, (-1 if first == last else number)

        for _, numbers in groupby(range(len(specs)), key=shared_bucket):
            together = list(numbers)
            yield [self._pieces[n] for n in together], [spec for n in together for spec in specs[n]]

    def _made(self, pieces: Sequence[Piece]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for piece in pieces:
            made |= piece.restore([self._value(source) for source in piece.sources])
        return made

    def _filled(self, number: int) -> torch.Tensor:
        self._beat()
        return self._staging.buffer(number) if self._fills else torch.empty(0, dtype=torch.uint8)

    def _parts(self, source: str) -> list[torch.Tensor]:
        """Return the parameters that the value of `source` is computed from."""
        return [self._sources[source], *(self._deltas[source].factors if source in self._deltas else [])]

    def _value(self, source: str) -> torch.Tensor:
        weight = self._sources[source].data
        return self._deltas[source].added_to(weight) if source in self._deltas else weight
