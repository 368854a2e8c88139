"""The section `model.lora` of a run file and of a cold start: train an adapter of low rank, keep the model as it is."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from ..errors import UsageError
from .section import Section, check_expression

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
KEYS_OF_PEFT = {
    "r": "r",
    "lora_alpha": "alpha",
    "use_rslora": "use_rslora",
    "target_modules": "target_modules",
    "target_parameters": "target_parameters",
}
"""Key of PEFT's adapter_config.json → setting here, of what says which adapter it is."""
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
            check_expression(value)
        return value

    @model_validator(mode="after")
    def _adapts_something(self) -> "LoraConfig":
        if not self.target_modules and not self.target_parameters:
            raise ValueError("target_modules and target_parameters are empty: nothing would be trained")
        return self


def described_by(saved: Mapping[str, Any], adapter: Path) -> LoraConfig:
    """Return the settings with which a run starts from `adapter`, whose configuration is `saved`.

    Raises UsageError when no run can have them.
    """
    settings = {ours: saved[theirs] for theirs, ours in KEYS_OF_PEFT.items() if saved.get(theirs) not in NEUTRAL}
    try:
        return LoraConfig.model_validate({"target_modules": []} | settings | {"adapter": adapter})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its settings"
        raise UsageError(f"the adapter {adapter} is none that is trained here: {where}: {first['msg']}") from error


def served_rank(rank: int) -> int:
    """Return the smallest --max-lora-rank with which a rollout server takes an adapter of `rank`."""
    return next(served for served in SERVED_RANKS if served >= rank)
