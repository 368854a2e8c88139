"""The section `model` of a run file."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from .lora import LoraConfig
from .section import Section, check_expression


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
    train_vision_tower: bool = Field(
        False,
        description="Train the vision tower and what joins it to the decoder, too; freeze_parameters_regex may leave "
        "parts of them out. For training without model.lora.",
    )
    freeze_parameters_regex: list[str] = Field(
        default_factory=list,
        description="Regular expressions, found anywhere in the names of parameters as transformers has them, as "
        r"'^model\.layers\.[0-9]\.': these are frozen. One expression needs no list. For training without model.lora.",
    )
    trainable_parameters_regex: list[str] = Field(
        default_factory=list,
        description="Exceptions from freeze_parameters_regex: these are trained although it matches them, too.",
    )
    lora: LoraConfig | None = Field(
        None, description="Train an adapter and keep the model frozen; absent: train all weights."
    )
    load_in_4bit: bool = Field(
        False,
        description="QLoRA: keep the frozen linear layers in NF4, four bits a weight. Needs model.lora, and a model "
        "written by grpo-train quantize-base, which the rollout servers serve, too.",
    )

    @property
    def trained_layout(self) -> dict[str, Any] | None:
        """The settings by which the optimizer's state lies; None when decoder and head are trained, and all of them."""
        tower = {"train_vision_tower": True} if self.train_vision_tower else {}
        return {**tower, **(self.frozen or {})} or None

    @property
    def frozen(self) -> dict[str, list[str]] | None:
        """The patterns that say which parameters are frozen; None without any."""
        names = "freeze_parameters_regex", "trainable_parameters_regex"
        return {name: getattr(self, name) for name in names} if self.freeze_parameters_regex else None

    @field_validator("freeze_parameters_regex", "trainable_parameters_regex", mode="before")
    @classmethod
    def _one_expression(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("freeze_parameters_regex", "trainable_parameters_regex")
    @classmethod
    def _readable(cls, value: list[str]) -> list[str]:
        for pattern in value:
            check_expression(pattern)
        return value

    @model_validator(mode="after")
    def _something_is_frozen(self) -> Self:
        if self.trainable_parameters_regex and not self.freeze_parameters_regex:
            raise ValueError(
                "trainable_parameters_regex are exceptions from freeze_parameters_regex, which is absent: to train "
                "these parameters alone, set freeze_parameters_regex to '.'"
            )
        if self.freeze_parameters_regex and self.lora is not None:
            raise ValueError(
                "freeze_parameters_regex is for training without an adapter; model.lora freezes the whole model, and "
                "model.lora.target_modules says where it trains"
            )
        if self.train_vision_tower and self.lora is not None:
            raise ValueError(
                "train_vision_tower is for training without an adapter; model.lora trains one on the decoder alone"
            )
        return self

    @model_validator(mode="after")
    def _quantized_weights_are_frozen(self) -> Self:
        if self.load_in_4bit and self.lora is None:
            raise ValueError("load_in_4bit trains an adapter only; add model.lora, or set load_in_4bit to false")
        return self
