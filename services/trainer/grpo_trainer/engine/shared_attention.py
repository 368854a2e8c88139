"""Attention over shared prefixes: functions that transformers calls in place of its own.

All else in a model computes token by token and needs nothing to share a prefix. The layout of the row travels as a
keyword argument of the decoder's forward pass, which hands it on to every layer's attention, also where checkpointing
computes a layer again. A layer that does not read it would compute something else without a word, hence `reading`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..algorithm.attention_layout import AttentionLayout, Block
from ..errors import RunError
from .sequence_parallel import in_exchange

SHARED = "shared_prefixes"
"""The function's name at transformers, which makes no mask for a name that it does not know."""
CAUSAL, NO_WINDOW = 0, -1
WIDEST_HEAD = 256
"""Width of a head up to which torch's own flash attention computes; it also wants a multiple of 8."""
WITHOUT_GRADIENT = range(193, 225)
"""Widths whose gradient it refuses on some GPUs (sm_86, 89, 120), after a forward pass that goes well."""
FEWER_KEY_HEADS = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""torch before 2.12 takes fewer key heads than query heads without being told."""


def shared_name(attention: str) -> str:
    """Return the name of the function that computes shared prefixes for a model whose attention is `attention`.

    Flash attention keeps its name, which transformers and its kernels look at: the function under it is replaced.
    """
    if not attention.startswith("flash_attention"):
        return SHARED
    if ALL_ATTENTION_FUNCTIONS[attention] is not shared_flash_attention:
        AttentionInterface.register(attention, shared_flash_attention)
    return attention


@contextmanager
def reading(layout: AttentionLayout, *, num_layers: int, family: str) -> Iterator[None]:
    """Raise RunError unless a forward pass reads `layout` once in each layer.

    The count is a fact of the model's code: every rank raises at the same micro-batch, and none waits for another.
    """
    layout.reads = 0
    yield
    if layout.reads != num_layers:
        raise RunError(
            f"{layout.reads} of {num_layers} layers of {family} read the shared prefixes: the others would have "
            "computed something else",
            hint="set deepspeed.share_prefixes to never",
        )


class Take(torch.autograd.Function):  # type: ignore[misc]
    """index_select of rows, whose gradients are summed in float32: in bfloat16 those of many copies would be rounded
    one by one."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.size = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,) = ctx.saved_tensors
        summed = torch.zeros(ctx.size, *grad.shape[1:], dtype=torch.float32, device=grad.device)
        return summed.index_add_(0, index, grad.float()).to(grad.dtype), None


@in_exchange
def shared_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    shared_prefixes: AttentionLayout,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key and value [B, heads, L, width] → [B, L, heads, width], by sdpa. B is 1 but for equal rows.

    On a GPU it is one call for all paths, where torch's flash attention can. `s_aux` are the sinks of gpt_oss, a score
    of each head for nothing.
    """
    _read(shared_prefixes, dropout)
    rows = query.shape[0], query.shape[2]
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    plain = softcap is None and s_aux is None
    widths = {"width": query.shape[-1], "value_width": value.shape[-1]}
    if plain and shared_prefixes.equal_rows is None and in_one_call(query.device, query.dtype, **widths):
        return _of_all_paths(shared_prefixes, query, key, value, scaling, sliding_window).unflatten(0, rows), None
    outputs = []
    for block in shared_prefixes.blocks:
        queries, keys, values = _of_block(block, query, key, value)
        if plain:
            mask = block.mask(sliding_window, query.dtype)
            if mask is not None and query.is_cuda:
                # CUDA's fast kernels take no mask where key heads are fewer than query heads.
                keys, values = (_for_each_query_head(tensor, queries) for tensor in (keys, values))
            found = nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )  # fmt: skip
        else:
            mask = block.explicit_mask(sliding_window, query.dtype)
            found = _in_the_open(queries, keys, values, mask, scaling, softcap, s_aux)
        found = found.transpose(1, 2).flatten(0, 1)
        outputs.append(found if block.output_index is None else found.index_select(0, block.output_index))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unflatten(0, rows), None


def in_one_call(device: torch.device, dtype: torch.dtype, *, width: int, value_width: int) -> bool:
    """Whether torch's own flash attention of variable length computes all paths: in half precision on a GPU since
    Ampere. Blocks take tens of kernels each, and a GPU waits longer for their launches than it computes."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and width == value_width <= WIDEST_HEAD
        and width % 8 == 0
        and width not in WITHOUT_GRADIENT
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def _of_all_paths(
    layout: AttentionLayout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """[U, heads, width] → the same: keys gathered path after path, causal and aligned at the end of each."""
    if (index := layout.key_index) is not None:
        key, value = Take.apply(key, index), Take.apply(value, index)
    # Count the keys before a query's own: the kernel's window leaves that one out.
    before = NO_WINDOW if window is None or window >= layout.longest[1] else window - 1
    found: torch.Tensor = varlen_attn(
        query, key, value, layout.query_ends, layout.key_ends, *layout.longest, scale=scaling,
        window_size=(before, CAUSAL), **FEWER_KEY_HEADS,
    )  # fmt: skip
    return found


@in_exchange
def shared_flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    shared_prefixes: AttentionLayout | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The same by flash attention of variable length: queries as they stand in the row, keys gathered, causal and
    aligned at the end. Without a layout it is transformers' own."""
    if shared_prefixes is not None:
        layout = shared_prefixes
        _read(layout, others.get("dropout", 0.0))
        if (index := layout.key_index) is not None:
            key, value = (Take.apply(tensor[0].transpose(0, 1), index).transpose(0, 1)[None] for tensor in (key, value))
        if layout.equal_rows is None:
            others |= {"cu_seq_lens_q": layout.query_ends, "cu_seq_lens_k": layout.key_ends}
            others |= {"max_length_q": layout.longest[0], "max_length_k": layout.longest[1]}
    found: tuple[torch.Tensor, None] = flash_attention_forward(module, query, key, value, attention_mask, **others)
    return found


def _read(layout: AttentionLayout, dropout: float) -> None:
    layout.reads += 1
    if dropout > 0.0:
        raise RunError(
            f"an attention dropout of {dropout} reached the attention over shared prefixes, which has none",
            hint="set the dropout to 0 in the model's config.json, or deepspeed.share_prefixes to never",
        )


def _of_block(
    block: Block, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows [U, heads, width] → the queries, keys and values of a block [b, heads, q or k, width]."""
    b, q, k = block.size
    own = slice(block.start, block.start + block.num_tokens)
    queries = query[own] if block.query_index is None else query[own].index_select(0, block.query_index)
    index = block.key_index
    keys, values = (tensor[own] if index is None else Take.apply(tensor, index) for tensor in (key, value))
    sizes = (q, k, k)
    found = (t.unflatten(0, (b, n)).transpose(1, 2) for t, n in zip((queries, keys, values), sizes, strict=True))
    return tuple(found)


def _for_each_query_head(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    return keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)


def _in_the_open(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What sdpa does not compute: capped scores (gemma2), and sinks in the softmax (gpt_oss)."""
    keys, values = (_for_each_query_head(tensor, queries) for tensor in (keys, values))
    scores = queries @ keys.mT * (queries.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + mask
    if sinks is not None:
        b, heads, q, _ = scores.shape
        scores = torch.cat([scores, sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(b, heads, q, 1)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(queries.dtype)
    return weights[..., : keys.shape[2]] @ values


AttentionInterface.register(SHARED, shared_attention)
