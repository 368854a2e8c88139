"""Adapter kernels for an engine on CPUs, in place of vLLM's."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

Rows: TypeAlias = torch.Tensor | slice


class AdapterKernels(PunicaWrapperCPU):  # type: ignore[misc]
    """One product for each adapter of the batch; rows of the base are left alone. `workarounds.mend_cpu_adapters`
    installs it and states why.

    Dimensions: x [rows, in]; A of all slots [slots, 1, rank, in]; B of all slots [slots, 1, out, rank].
    """

    def update_metadata(self, *args: Any, **options: Any) -> None:
        super().update_metadata(*args, **options)
        self._token_groups = groups(self.token_lora_indices)
        self._sampler_groups = groups(self.sampler_indices)

    def add_shrink(
        self,
        y: tuple[torch.Tensor, ...] | torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        scale: float,
        **_: Any,
    ) -> None:
        x = x.view(-1, x.shape[-1])
        for part, a in zip(y, lora_a_stacked, strict=True):
            shrink(part.view(-1, part.shape[-1]), x, a, scale, self._token_groups)

    def add_expand(
        self,
        y: torch.Tensor,
        x: tuple[torch.Tensor, ...] | torch.Tensor,
        lora_b_stacked: tuple[torch.Tensor, ...],
        output_slices: tuple[int, ...],
        offset_start: int = 0,
        add_inputs: bool = True,
        **_: Any,
    ) -> None:
        flat, offset = y.view(-1, y.shape[-1]), offset_start
        for part, b, num_columns in zip(x, lora_b_stacked, output_slices, strict=True):
            columns = flat[:, offset : offset + num_columns]
            if not add_inputs:
                for group in self._token_groups:
                    columns[group[1]] = 0
            expand(columns, part.view(-1, part.shape[-1]), b, self._token_groups)
            offset += num_columns

    def add_lora_embedding(
        self, y: torch.Tensor, x: torch.Tensor, lora_b_stacked: torch.Tensor, add_inputs: bool = True, **_: Any
    ) -> None:
        self.add_expand(y, (x,), (lora_b_stacked,), (y.shape[-1],), add_inputs=add_inputs)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **_: Any,
    ) -> None:
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        if buffer is None:
            buffer = torch.zeros(x.shape[0], lora_b_stacked.shape[-1], dtype=torch.float32)
        shrink(buffer, x, lora_a_stacked, scale, self._sampler_groups)
        expand(y, buffer, lora_b_stacked, self._sampler_groups)


def groups(slot_of_row: torch.Tensor) -> list[tuple[int, Rows]]:
    """Return each slot with its rows. Base rows, of slot -1, are in no group. A lone slot gets a slice."""
    slots = torch.unique(slot_of_row).tolist()
    if len(slots) == 1 and slots[0] >= 0:
        return [(slots[0], slice(0, slot_of_row.shape[0]))]
    return [(slot, (slot_of_row == slot).nonzero()[:, 0]) for slot in slots if slot >= 0]


def shrink(y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, scale: float, groups: Sequence[tuple[int, Rows]]) -> None:
    """y[rows] = scale · x[rows] Aᵀ"""
    for slot, rows in groups:
        a_of_slot = a[slot].squeeze(0)
        y[rows] = product(x[rows].to(a.dtype), a_of_slot).to(y.dtype) * scale


def expand(y: torch.Tensor, x: torch.Tensor, b: torch.Tensor, groups: Sequence[tuple[int, Rows]]) -> None:
    """y[rows] += x[rows] Bᵀ, in the columns that both have: a padded vocabulary has more than its adapter."""
    for slot, rows in groups:
        b_of_slot = b[slot].squeeze(0)
        num_columns = min(y.shape[1], b_of_slot.shape[0])
        y[rows, :num_columns] += product(x[rows].to(b.dtype), b_of_slot[:num_columns]).to(y.dtype)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x Wᵀ, [rows, out]. A row's bits do not depend on the number of rows beside it.

    Which requests share a step is a matter of timing. `x @ W.T` adds up in another order when there are few rows, so
    a repeated run got other logprobs (1e-7). oneDNN, which vLLM takes for the base, does so for a lone row only, which
    therefore goes in twice. It is taken for float32 alone: not every CPU has its kernels for the other dtypes.
    """
    if x.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return x @ weight.T
    rows = x.contiguous() if x.shape[0] > 1 else x.repeat(2, 1)
    return torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")[: x.shape[0]]
