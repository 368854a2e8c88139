"""The section `model.lora` of a run file and of a cold start: train an adapter of low rank, keep the model as it is."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from .section import Section

ALL_LINEAR = "all-linear"
"""PEFT's name for every linear layer but the output head."""
REFUSED = {
    "use_dora": "vLLM serves no DoRA adapters",
    "bias": "vLLM serves no adapters with biases",
    "lora_bias": "vLLM serves no adapters with biases",
    "modules_to_save": "vLLM serves no adapters with whole modules; train without model.lora",
}
"""Settings of PEFT that no rollout server can serve, and the reason."""
SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank. The rank of an adapter may be any number up to that."""
NEUTRAL: tuple[Any, ...] = (None, False, "none", [])


class LoraConfig(Section):
    """An adapter on a frozen model. Names are PEFT's, without `lora_`."""

    r: int = Field(32, ge=1, le=512, description="Rank. A rollout server takes ranks up to its --max-lora-rank.")
    alpha: int = Field(32, ge=1, description="The adapter's output is multiplied by alpha / r.")
    target_modules: str | list[str] = Field(
        ALL_LINEAR,
        description="Names or ends of names of linear layers; a single string is a regular expression. all-linear: "
        "every linear layer but the output head.",
    )
    target_parameters: list[str] = Field(
        default_factory=list,
        description="Ends of names of parameters outside linear layers: fused experts, such as "
        "mlp.experts.gate_up_proj, which all-linear misses. Only with servers without --enable-lora.",
    )
    dropout: float = Field(
        0.0, ge=0.0, lt=1.0, description="Dropout before the adapter, in updates only: never where logprobs compare."
    )
    use_rslora: bool = Field(False, description="Multiply by alpha / sqrt(r) instead.")
    adapter: Path | None = Field(
        None, description="Folder of an adapter to start from, of the same shape; absent: a new one, which is zero."
    )

    @model_validator(mode="before")
    @classmethod
    def _servable(cls, values: Any) -> Any:
        """Refuse by name what could be trained and not served; drop it where it is switched off."""
        if not isinstance(values, dict):
            return values
        refused = [f"{name}: {why}" for name, why in REFUSED.items() if values.get(name) not in NEUTRAL]
        if refused:
            raise ValueError("; ".join(refused))
        return {name: value for name, value in values.items() if name not in REFUSED}

    @field_validator("target_modules")
    @classmethod
    def _one_word(cls, value: str | list[str]) -> str | list[str]:
        """A flag gives a list of one word, which may be all-linear or a regular expression: no name has its signs."""
        if isinstance(value, list) and len(value) == 1 and not re.fullmatch(r"[\w.]+", value[0]):
            return value[0]
        return value

    @field_validator("target_modules")
    @classmethod
    def _readable(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str):
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _adapts_something(self) -> "LoraConfig":
        if not self.target_modules and not self.target_parameters:
            raise ValueError("target_modules and target_parameters are empty: nothing would be trained")
        return self


def served_rank(rank: int) -> int:
    """Return the smallest --max-lora-rank with which a rollout server takes an adapter of `rank`."""
    return next(served for served in SERVED_RANKS if served >= rank)
