"""A tiny model of each family: random weights in the real class, with everything that is particular to the family."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

VOCABULARY = 128
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA_NET = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "num_hidden_layers": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """`what` is particular to it; `flags` of the engine; `needs` a package that the CPU environment leaves out;
    `not_here`: why a CPU engine cannot serve it."""

    config: Callable[[], PretrainedConfig]
    what: str = ""
    dtype: torch.dtype = torch.float32
    flags: dict[str, Any] = field(default_factory=dict)
    needs: str | None = None
    not_here: str | None = None

    @property
    def can_be_tried(self) -> bool:
        return self.not_here is None and (self.needs is None or find_spec(self.needs) is not None)


def _of(name: str, **settings: Any) -> Callable[[], PretrainedConfig]:
    return lambda: getattr(transformers, name)(**SMALL | settings)


def _vision_language() -> PretrainedConfig:
    text = {key: value for key, value in SMALL.items() if not key.endswith("_token_id")}
    vision = {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    return transformers.Gemma3Config(
        text_config={**text, "query_pre_attn_scalar": 32},
        vision_config=vision,
        mm_tokens_per_image=4,
        boi_token_index=120,
        eoi_token_index=121,
        image_token_index=122,
        architectures=["Gemma3ForConditionalGeneration"],
    )


FAMILIES = {
    "qwen2": Family(_of("Qwen2Config", tie_word_embeddings=True), "tied output head"),
    "qwen2_untied": Family(_of("Qwen2Config", tie_word_embeddings=False), "output head of its own"),
    "qwen3": Family(_of("Qwen3Config")),
    "llama": Family(_of("LlamaConfig")),
    "mistral": Family(_of("MistralConfig")),
    "phi3": Family(_of("Phi3Config"), "fused projections"),
    "gemma2": Family(_of("Gemma2Config", query_pre_attn_scalar=32), "soft-capped attention and logits"),
    "gemma3_text": Family(_of("Gemma3TextConfig", query_pre_attn_scalar=32)),
    "gemma3": Family(
        _vision_language,
        "text of a vision-language checkpoint; the vision tower is frozen",
        flags={"language_model_only": True},
        needs="torchvision",
    ),
    "olmo2": Family(_of("Olmo2Config")),
    "granite": Family(_of("GraniteConfig", logits_scaling=8.0), "scaled logits"),
    "smollm3": Family(_of("SmolLM3Config")),
    "glm4": Family(_of("Glm4Config")),
    "qwen3_moe": Family(_of("Qwen3MoeConfig", **EXPERTS), "experts"),
    "mixtral": Family(_of("MixtralConfig", num_local_experts=4, num_experts_per_tok=2), "experts"),
    "gpt_oss": Family(
        _of("GptOssConfig", num_local_experts=4, num_experts_per_tok=2, intermediate_size=64, head_dim=64),
        "experts in one tensor, attention sinks",
        dtype=torch.bfloat16,
    ),
    "deepseek_v3": Family(
        _of(
            "DeepseekV3Config", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, kv_lora_rank=512,
            q_lora_rank=32, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=2, topk_group=1,
            first_k_dense_replace=1, num_key_value_heads=4, topk_method="noaux_tc", head_dim=64,
        ),
        "latent attention, experts",
        dtype=torch.bfloat16,
        not_here="a CPU engine's latent attention differs from transformers' by up to 0.4 as loaded, and takes no push",
    ),
    "qwen3_next": Family(
        _of("Qwen3NextConfig", **EXPERTS, **DELTA_NET, shared_expert_intermediate_size=32),
        "linear attention, experts",
        dtype=torch.bfloat16,
        flags={"enable_prefix_caching": False},
    ),
    "qwen3_5_text": Family(
        _of("Qwen3_5TextConfig", **DELTA_NET),
        "linear attention",
        dtype=torch.bfloat16,
        flags={"enable_prefix_caching": False},
        needs="torchvision",
    ),
}  # fmt: skip


def save_model(family: Family, folder: Path, *, seed: int) -> Path:
    """A checkpoint with random weights, large enough that a wrong layer shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(family.config(), dtype=family.dtype)
    # In bf16 a large gain turns rounding into another choice of experts.
    gain = 1.0 if family.dtype == torch.float32 else 0.5
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, gain * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder
