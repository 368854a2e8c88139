"""The policy: a causal language model that returns logprobs instead of logits."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..algorithm.attention_layout import AttentionLayout
from ..algorithm.image_tokens import ImageInputs
from .family import image_token_of
from .images import inputs_of_decoder
from .load_balancing import load_balancing_loss
from .output_head import Outputs, TokenHead, TokenLoss, logit_transform
from .sequence_parallel import SequenceGroup
from .shared_attention import Take, reading, shared_name


class Policy(nn.Module):  # type: ignore[misc]
    """A causal language model that returns logprobs. The wrapped model keeps its parameters and their names.

    Rows with shared prefixes are computed by another attention than padded ones (`shared_attention.py`), and by all
    ranks of the `group`, which have the same micro-batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        chunk_tokens: int,
        in_float32: bool = False,
        group: SequenceGroup | None = None,
    ):
        super().__init__()
        self.model = model
        self.group = group
        self._sees = image_token_of(model.config) is not None
        self._attention = str(model.config.get_text_config()._attn_implementation)
        self.head = TokenHead(
            model.get_output_embeddings(),
            transform=logit_transform(model.config),
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            in_float32=in_float32,
        )

    def forward(
        self,
        input_ids_BL: torch.Tensor,
        hidden_N: torch.Tensor,
        target_N: torch.Tensor,
        position_ids_BL: torch.Tensor | None = None,
        layout: AttentionLayout | None = None,
        images: ImageInputs | None = None,
        token_loss: TokenLoss | None = None,
        token_counts_BL: torch.Tensor | None = None,
    ) -> Outputs:
        """Return log π and entropy [N], float32, of the tokens `target_N` after the hidden states `hidden_N`, after
        temperature.

        With `token_loss` also its sum over all tokens, a scalar, and log π carries no gradient then. With
        `token_counts_BL` also, as the last, the load-balancing loss, a scalar. Rows are those of a `MicroBatch`. The
        gradient of a scalar is this rank's part of it.

        Raises RunError when a layer does not read the layout, and what `load_balancing_loss` raises.
        """
        group, size = self.group, len(hidden_N)
        if group is not None and layout is not None:
            input_ids_BL, position_ids_BL, images = group.deal(input_ids_BL, position_ids_BL, layout, images)
            own_n, hidden_N = group.own_of(hidden_N)
            target_N = target_N[own_n]
            token_loss = None if token_loss is None else _of_own(token_loss, own_n)
        balances = token_counts_BL is not None
        last_BLH, router_logits = self._decode(input_ids_BL, position_ids_BL, layout, images, balances=balances)
        rows = last_BLH.flatten(0, 1)
        hidden_NH = rows.index_select(0, hidden_N) if layout is None else Take.apply(rows, hidden_N)
        found: Outputs = self.head(hidden_NH, target_N, token_loss)
        if group is not None and layout is not None:
            found = group.whole_outputs(found, own_n, size)
            router_logits = group.whole_rows(router_logits, layout)
        if token_counts_BL is None:
            return found
        return *found, load_balancing_loss(self.model, router_logits, token_counts_BL)

    def _decode(
        self,
        input_ids_BL: torch.Tensor,
        position_ids_BL: torch.Tensor | None,
        layout: AttentionLayout | None,
        images: ImageInputs | None,
        *,
        balances: bool,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Return the last hidden states [B, L, H] and, if it `balances` experts, their router logits of each layer."""
        decoder = self.model.get_decoder()
        decoder.config._attn_implementation = self._attention if layout is None else shared_name(self._attention)
        settings: dict[str, Any] = {"use_cache": False} | ({"output_router_logits": True} if balances else {})
        settings |= inputs_of_decoder(decoder, input_ids_BL, images) if self._sees else {"input_ids": input_ids_BL}
        if position_ids_BL is not None:
            settings["position_ids"] = position_ids_BL
        if layout is None:
            outputs = decoder(**settings)
        else:
            with reading(layout, num_layers=decoder.config.num_hidden_layers, family=decoder.config.model_type):
                outputs = decoder(shared_prefixes=layout, **settings)
        return outputs.last_hidden_state, outputs.router_logits if balances else ()


def _of_own(token_loss: TokenLoss, own_n: torch.Tensor) -> TokenLoss:
    """`token_loss` of those of the N tokens that are this rank's own."""
    return lambda logprobs_n, entropy_n, chunk: token_loss(logprobs_n, entropy_n, own_n[chunk])
