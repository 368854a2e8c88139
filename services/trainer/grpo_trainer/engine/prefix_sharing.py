"""Whether a policy computes shared prefixes once, and what its micro-batches keep for it until the backward pass."""

import logging

import torch
from transformers import PretrainedConfig

from ..algorithm.prefixes import PrefixSharing
from ..config.model import ModelConfig
from ..config.optimization import DeepSpeedConfig
from ..errors import UsageError
from .family import IMAGE_FAMILIES
from .shared_attention import in_one_call

log = logging.getLogger(__name__)

SHARING_FAMILIES = (
    "qwen2", "qwen3", "llama", "mistral", "phi3", "gemma2", "gemma3_text", "olmo2", "granite", "smollm3", "glm4",
    "gemma3", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3",
)  # fmt: skip
"""Model types whose logprobs and gradients are those of padded rows: tests/trainer/test_shared_prefixes.py. Those of
families with images are, too: tests/trainer/test_images.py.

A mask that says more than causal and sliding window would go unnoticed (chunks, sparse indexers), hence a list. Linear
attention and other recurrences carry a state along the row and read no layout."""

HAVE_SINKS = ("gpt_oss",)
"""Families with attention sinks, which torch's flash attention does not know."""


def prefix_sharing_for(
    family: PretrainedConfig, config: ModelConfig, ranks: DeepSpeedConfig, *, device: torch.device
) -> PrefixSharing | None:
    """Return how micro-batches of a loaded model's `family` are counted; None for padded rows.

    Under `share_prefixes: auto` it logs for which family the rows are padded. Raises what `check_dealt_rows` raises.
    """
    if ranks.share_prefixes == "never":
        return None
    check_dealt_rows(family, ranks)
    if not _shares(family):
        log.info(
            "shared prefixes are off for %s, with which nobody has proved them: each sequence has a padded row; the "
            "families that share: %s",
            family.model_type,
            ", ".join((*SHARING_FAMILIES, *IMAGE_FAMILIES)),
        )
        return None
    masks = not (config.attn_implementation.startswith("flash_attention") or _in_one_call(family, config, device))
    return kept_by_sharing(family, recomputes=config.gradient_checkpointing, masks=masks)


def check_dealt_rows(family: PretrainedConfig, ranks: DeepSpeedConfig) -> None:
    """Raise UsageError where several ranks are to compute a row together and cannot with this family."""
    size = ranks.sequence_parallel_size
    if size == 1:
        return
    if not _shares(family):
        raise UsageError(
            f"deepspeed.sequence_parallel_size is {size}, and {family.model_type} is no family whose rows can be dealt "
            "out to several ranks",
            hint=f"leave it out; the families that can: {', '.join((*SHARING_FAMILIES, *IMAGE_FAMILIES))}",
        )
    heads = family.get_text_config().num_attention_heads
    if heads % size:
        raise UsageError(
            f"deepspeed.sequence_parallel_size is {size}, and the model has {heads} attention heads, of which each "
            "rank of a group computes as many",
            hint=f"choose a divisor of {heads}",
        )


def _shares(family: PretrainedConfig) -> bool:
    return family.model_type in (*SHARING_FAMILIES, *IMAGE_FAMILIES)


def _in_one_call(family: PretrainedConfig, config: ModelConfig, device: torch.device) -> bool:
    """Whether all layers' attention is torch's call for all paths, which makes no mask."""
    text = family.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) or text.model_type in HAVE_SINKS or _is_latent(text):
        return False
    width = _head_width(text)
    return in_one_call(device, getattr(torch, config.dtype), width=width, value_width=width)


def _head_width(text: PretrainedConfig) -> int:
    width: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width


def _is_latent(text: PretrainedConfig) -> bool:
    return bool(getattr(text, "kv_lora_rank", None))


def kept_by_sharing(family: PretrainedConfig, *, recomputes: bool, masks: bool = True) -> PrefixSharing:
    """Count what a path keeps, as a share of what a token of the row keeps in all layers.

    A layer keeps about 4 inputs and outputs of its width, queries and attention's output, keys and values, and 3 of the
    width of its MLP: the least that families keep, so that a path is rather counted too high. With recomputed
    activations only the input of each layer is kept, and all of a single layer.
    """
    text = family.get_text_config()
    width, layers, heads = text.hidden_size, text.num_hidden_layers, text.num_attention_heads
    head_width = _head_width(text)
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    if _is_latent(text):  # keys and values are made for every head before attention
        key_heads, head_width = heads, max(head_width, getattr(text, "qk_head_dim", None) or 0)
    experts = getattr(text, "num_experts_per_tok", None) or 1
    mlp_width = (getattr(text, "moe_intermediate_size", None) or text.intermediate_size) * experts
    key_and_value = 2 * key_heads * head_width
    of_layer = 4 * width + 2 * heads * head_width + key_and_value + 3 * mlp_width
    kept, layers_with_keys = (width * layers + of_layer, 1) if recomputes else (of_layer * layers, layers)
    kinds_of_masks = (2 if getattr(text, "sliding_window", None) else 1) if masks else 0
    return PrefixSharing(
        key=key_and_value * layers_with_keys / kept, score=kinds_of_masks / kept, trained=2 * width / kept
    )
