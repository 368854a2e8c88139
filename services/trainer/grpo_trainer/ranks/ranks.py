"""The ranks of the trainer: broadcast, scatter and gather JSON and arrays between them.

Only rank 0 calls the servers; the other ranks get their data from it over a separate Gloo group. The timeout of that
group covers the longest wait of rank 0 for a server, so that a slow rollout is no hanging collective. Nothing is
pickled.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..errors import RunError

NamedArrays = dict[str, NDArray[Any]]

ALIGNMENT = 8
"""In bytes: the size of the largest number in an array."""


@dataclass(frozen=True)
class Ranks:
    """This process among the trainer's ranks. `control` is None for a single rank."""

    rank: int
    world_size: int
    control: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast_json(self, message: Any) -> Any:
        """Return rank 0's `message` on every rank; ignores the `message` of the others.

        Raises RunError when rank 0 is gone or silent for longer than the group's timeout.
        """
        if self.control is None:
            return message
        payload = (
            torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8) if self.is_first else None
        )
        length = torch.tensor([payload.numel() if payload is not None else 0])
        with _ranks_may_be_gone():
            dist.broadcast(length, src=0, group=self.control)
            buffer = payload if payload is not None else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(buffer, src=0, group=self.control)
        return json.loads(buffer.numpy().tobytes())

    def scatter_arrays(self, each: Sequence[NamedArrays] | None) -> NamedArrays:
        """Return this rank's part of rank 0's `each`, byte for byte; ignores the `each` of the others.

        Broadcasts the lengths first, then scatters one message of bytes to each rank, padded to the longest. Raises
        what `broadcast_json` raises.
        """
        if self.control is None:
            return dict((each or [{}])[0])
        parts = [{name: np.ascontiguousarray(array) for name, array in part.items()} for part in each or []]
        headers = [[[name, a.dtype.str, list(a.shape)] for name, a in part.items()] for part in parts]
        headers = self.broadcast_json(headers)
        sizes = [sum(_num_bytes(dtype, shape) for _, dtype, shape in header) for header in headers]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        packed = [_padded(part, max(sizes)) for part in parts] if self.is_first else None
        if max(sizes):
            with _ranks_may_be_gone():
                dist.scatter(own, packed, src=0, group=self.control)
        received, start = {}, 0
        for name, dtype, shape in headers[self.rank]:
            num_bytes = _num_bytes(dtype, shape)
            flat = own.numpy()[start : start + np.dtype(dtype).itemsize * math.prod(shape)]
            received[name] = flat.view(np.dtype(dtype)).reshape(shape)
            start += num_bytes
        return received

    def gather_json(self, message: Any) -> list[Any]:
        """Return the `message` of every rank, on every rank. Raises what `broadcast_json` raises, for any rank."""
        if self.control is None:
            return [message]
        content = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        lengths = [torch.tensor([0]) for _ in range(self.world_size)]
        with _ranks_may_be_gone():
            dist.all_gather(lengths, torch.tensor([len(content)]), group=self.control)
            own = torch.zeros(max(map(int, lengths)), dtype=torch.uint8)
            own[: len(content)] = content
            everything = [torch.empty_like(own) for _ in range(self.world_size)]
            dist.all_gather(everything, own, group=self.control)
        return [json.loads(part[: int(n)].numpy().tobytes()) for part, n in zip(everything, lengths, strict=True)]


@contextmanager
def _ranks_may_be_gone() -> Iterator[None]:
    """Raise RunError for what Gloo raises: its text has places in C++ around the one sentence that tells something."""
    try:
        yield
    except RuntimeError as error:
        raise of_a_lost_rank(error) from error


def is_of_a_lost_rank(error: RuntimeError) -> bool:
    """Whether a collective, which an engine's library called, has failed because another rank is gone."""
    lost = ("/gloo/transport/", "remote process exited", "Connection closed by", "Connection reset by")
    return any(text in str(error) for text in lost)


def of_a_lost_rank(error: RuntimeError) -> RunError:
    """Return what is told of it in place of a library's frames."""
    reason = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]
    return RunError(
        f"another rank is gone or silent: {reason}",
        hint="the rank that ended first says why in its log; go on with --resume",
    )


def _num_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of an array, rounded up so that the next array is aligned."""
    return -(-np.dtype(dtype).itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT


def _padded(part: NamedArrays, num_bytes: int) -> torch.Tensor:
    whole = np.zeros(num_bytes, dtype=np.uint8)
    start = 0
    for array in part.values():
        whole[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        start += _num_bytes(array.dtype.str, array.shape)
    return torch.from_numpy(whole)


def join_ranks(*, silence_s: float) -> Ranks:
    """Return the ranks of the initialised process group. `silence_s`: how long rank 0 may be silent."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks(rank=0, world_size=1)
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=silence_s))
    return Ranks(dist.get_rank(), dist.get_world_size(), control)
