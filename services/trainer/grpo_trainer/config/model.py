"""The section `model` of a run file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .lora import LoraConfig
from .section import Section


class ModelConfig(Section):
    """The policy."""

    name_or_path: str = Field(min_length=1, description="Hugging Face name or folder of the policy to start from.")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Dtype of the trained and pushed weights.")
    head_dtype: Literal["model", "float32"] = Field(
        "model",
        description="Dtype in which the output head computes logits. float32 rounds less where dtype is bfloat16; the "
        'rollout servers then need --hf-overrides \'{"head_dtype": "float32"}\'.',
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Jinja template, or a file that holds it; replaces the tokenizer's own, in the saved models, too.",
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, slower backward.")
    logprob_chunk_tokens: int = Field(
        1024, ge=1, description="Tokens whose [tokens, vocabulary] logits are in memory at the same time."
    )
    trust_remote_code: bool = False
    lora: LoraConfig | None = Field(
        None, description="Train an adapter and keep the model frozen; absent: train all weights."
    )
    load_in_4bit: bool = Field(
        False,
        description="QLoRA: keep the frozen linear layers in NF4, four bits a weight. Needs model.lora, and a model "
        "written by grpo-train quantize-base, which the rollout servers serve, too.",
    )

    @model_validator(mode="after")
    def _quantized_weights_are_frozen(self) -> Self:
        if self.load_in_4bit and self.lora is None:
            raise ValueError("load_in_4bit trains an adapter only; add model.lora, or set load_in_4bit to false")
        return self
