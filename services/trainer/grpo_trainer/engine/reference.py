"""A reference model that follows the policy (TR-DPO, arXiv 2404.09656): π_ref ← α · π + (1 − α) · π_ref.

Its weights lie on the ranks as the policy's do, so every rank mixes, saves and loads what it holds, without the others.
"""

from pathlib import Path

import torch
from torch import nn

from .reshaping import fragment_of
from .state import STATE_TAG
from .write_errors import Write


class MovingReference:
    """The weights of a reference model of the same shape as the policy.

    `sharded`: ZeRO-3 splits both over the ranks; otherwise every rank has all of them.
    """

    def __init__(self, weights: nn.Module, *, rank: int, sharded: bool):
        self._weights, self._rank, self._sharded = weights, rank, sharded
        self.has_moved = False

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def follow(self, policy: nn.Module, *, alpha: float) -> None:
        """Move to `alpha` · policy + (1 − `alpha`) · reference, rounded once to the dtype of the weights."""
        for own, trained in zip(self._weights.parameters(), policy.parameters(), strict=True):
            _held(own).lerp_(_held(trained), alpha)
            _forget_gathered(own)
        self.has_moved = True

    def save(self, folder: Path, write: Write) -> None:
        """Have what this rank holds written by `write`, once for all ranks that hold the same."""
        if self._sharded or self._rank == 0:
            held = {name: _held(parameter).cpu() for name, parameter in self._weights.named_parameters()}
            write(held, self._file(folder, self._rank))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load(self, folder: Path, *, num_ranks: int) -> None:
        """Read what `save` wrote on `num_ranks` ranks. Raises OSError when it is not there."""
        ranks = range(num_ranks) if self._sharded else [0]
        saved = [torch.load(self._file(folder, rank), weights_only=True, mmap=True) for rank in ranks]
        for name, parameter in self._weights.named_parameters():
            held = _held(parameter)
            length, numel = held.numel(), getattr(parameter, "ds_numel", parameter.numel())
            first = length * self._rank if self._sharded else 0
            pieces = [of_rank[name].flatten() for of_rank in saved]
            held.copy_(fragment_of(pieces, first=first, length=length, numel=numel).view_as(held))
            _forget_gathered(parameter)
        self.has_moved = True

    def _file(self, folder: Path, rank: int) -> Path:
        return folder / STATE_TAG / f"reference-{rank}.pt"


def _held(parameter: nn.Parameter) -> torch.Tensor:
    """The numbers that this rank holds: all, or its shard under ZeRO-3."""
    held: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
    return held.detach()  # without DeepSpeed's attributes, which a file would have to hold


def _forget_gathered(parameter: nn.Parameter) -> None:
    """Have ZeRO-3 gather the parameter again: small ones stay gathered after their first use."""
    if hasattr(parameter, "ds_tensor"):
        parameter.partition()
