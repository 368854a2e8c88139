"""The ranks of the trainer, and how rank 0 tells the others what it learnt.

Rank 0 alone speaks HTTP. What the others need reaches them as JSON in a Gloo broadcast of its own group, which waits as
long as rank 0 may wait for a server: a slow rollout is no hanging collective. Nothing is pickled.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

NamedArrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Ranks:
    """This process among the trainer's. `control` is None when it is alone."""

    rank: int
    world_size: int
    control: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast_json(self, message: Any) -> Any:
        """Rank 0's `message` on every rank; what the others pass is ignored.

        Raises RuntimeError when rank 0 is gone or silent for longer than the group's time-out.
        """
        if self.control is None:
            return message
        payload = (
            torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8) if self.is_first else None
        )
        length = torch.tensor([payload.numel() if payload is not None else 0])
        dist.broadcast(length, src=0, group=self.control)
        buffer = payload if payload is not None else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(buffer, src=0, group=self.control)
        return json.loads(buffer.numpy().tobytes())

    def broadcast_arrays(self, named: NamedArrays | None) -> NamedArrays | None:
        """Rank 0's arrays on every rank, byte for byte; what the others pass is ignored. None stays None.

        Raises what `broadcast_json` does.
        """
        if self.control is None:
            return named
        own = {name: np.ascontiguousarray(array) for name, array in (named or {}).items()} if self.is_first else {}
        header = [[name, array.dtype.str, list(array.shape)] for name, array in own.items()]
        header = self.broadcast_json(None if named is None else header)
        if header is None:
            return None
        received: NamedArrays = {}
        for name, dtype, shape in header:
            array = own[name] if self.is_first else np.empty(shape, dtype=np.dtype(dtype))
            if array.size:
                dist.broadcast(torch.from_numpy(array.reshape(-1).view(np.uint8)), src=0, group=self.control)
            received[name] = array
        return received

    def gather_json(self, message: Any) -> list[Any]:
        """What every rank says, on every rank."""
        if self.control is None:
            return [message]
        content = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        lengths = [torch.tensor([0]) for _ in range(self.world_size)]
        dist.all_gather(lengths, torch.tensor([len(content)]), group=self.control)
        own = torch.zeros(max(map(int, lengths)), dtype=torch.uint8)
        own[: len(content)] = content
        everything = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(everything, own, group=self.control)
        return [json.loads(said[: int(n)].numpy().tobytes()) for said, n in zip(everything, lengths, strict=True)]


def join_ranks(*, silence_s: float) -> Ranks:
    """The ranks of the process group the engine has initialised; `silence_s`: how long rank 0 may be silent."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks(rank=0, world_size=1)
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=silence_s))
    return Ranks(dist.get_rank(), dist.get_world_size(), control)
