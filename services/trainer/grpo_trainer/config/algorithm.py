"""The section `algorithm` of a run file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from .section import Positive, Section, Share

LossType = Literal[
    "grpo",
    "bnpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "gspo_token",
    "luspo",
    "decoupled",
    "cispo",
    "sapo",
    "gmpo",
    "fipo",
    "dppo_tv",
    "dppo_kl",
    "vespo",
    "reinforce",
    "real",
]


@dataclass(frozen=True)
class Preset:
    """What a `loss_type` stands for."""

    surrogate: str
    normaliser: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of other settings of the section, where they differ from the section's own."""


GSPO_CLIP = {"epsilon": 3e-4, "epsilon_high": 4e-4}
"""arXiv 2507.18071: ratios of whole episodes stay much closer to 1 than those of tokens."""
LOSS_TYPES: dict[LossType, Preset] = {
    "grpo": Preset("clipped", "grpo"),
    "bnpo": Preset("clipped", "bnpo"),
    "dr_grpo": Preset("clipped", "dr_grpo"),
    "dapo": Preset("clipped", "dapo"),
    "gspo": Preset("clipped", "grpo", {"importance_sampling_level": "sequence", **GSPO_CLIP}),
    "gspo_token": Preset("clipped", "grpo", {"importance_sampling_level": "sequence_token", **GSPO_CLIP}),
    "luspo": Preset("clipped", "luspo", {"importance_sampling_level": "sequence"}),
    "decoupled": Preset("decoupled", "dapo"),
    "cispo": Preset("cispo", "dapo", {"epsilon_high": 5.0}),
    "sapo": Preset("sapo", "grpo"),
    "gmpo": Preset("gmpo", "grpo", {"epsilon": 0.4}),
    "fipo": Preset("fipo", "dapo"),
    "dppo_tv": Preset("dppo_tv", "dapo", {"epsilon": 0.15}),
    "dppo_kl": Preset("dppo_kl", "dapo", {"epsilon": 0.05}),
    "vespo": Preset("vespo", "dapo"),
    "reinforce": Preset("reinforce", "dapo"),
    "real": Preset("reinforce", "grpo", {"advantage_estimator": "real"}),
}


class AlgorithmConfig(Section):
    """Loss, advantages and staleness."""

    loss_type: LossType = Field(
        "dapo", description="A preset of surrogate, normaliser and defaults of its settings, under TRL's name."
    )
    advantage_estimator: str = Field(
        "grpo",
        min_length=1,
        description="Rewards → advantages: grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, gdpo, maxrl, "
        "pass_at_k, real; your own is FILE.py:NAME.",
    )
    advantage_estimator_params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the estimator, where it takes any."
    )
    loss: str | None = Field(
        None, min_length=1, description="Loss of a token, instead of the preset's; your own is FILE.py:NAME."
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the loss, where it takes any: docs/losses.md has them."
    )
    normaliser: str | None = Field(
        None, min_length=1, description="Weight of a token, instead of the preset's; your own is FILE.py:NAME."
    )
    normaliser_params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the normaliser, where it takes any."
    )
    scale_rewards: Literal["group", "batch", "none"] | None = Field(
        None, description="Standard deviation that divides the advantages; absent: the estimator's own."
    )
    epsilon: Share = Field(0.2, description="Lower clip of the importance ratio: 1 - epsilon.")
    epsilon_high: float | None = Field(None, gt=0.0, description="Upper clip: 1 + epsilon_high; epsilon when absent.")
    importance_sampling_level: Literal["token", "sequence", "sequence_token"] = Field(
        "token", description="Importance ratio of a token, of its whole completion, or that with a token's gradient."
    )
    delta: float | None = Field(None, gt=1.0, description="Upper bound of the ratio where the clip sets none.")
    beta: float = Field(0.0, ge=0.0, description="Weight of the KL term to the reference model; 0: no reference.")
    sync_ref_model: bool = Field(
        False, description="Move the reference model towards the policy every ref_model_sync_steps steps (TR-DPO)."
    )
    ref_model_mixup_alpha: Share = Field(
        0.6, description="Weight of the policy when the reference model moves; its own is 1 - ref_model_mixup_alpha."
    )
    ref_model_sync_steps: int = Field(
        512, ge=1, description="Generation batches from one move of the reference model to the next."
    )
    kl_estimator: Literal["unbiased", "k3", "k2"] = Field(
        "unbiased", description="KL term of the loss: k2, k3, or k3 times the ratio, whose gradient is unbiased."
    )
    kl_in_reward: bool = Field(
        False, description="Subtract beta · KL (k1) from the rewards, before the advantages, and not in the loss."
    )
    num_iterations: int = Field(1, ge=1, description="Passes over one generation batch.")
    steps_per_generation: int = Field(1, ge=1, description="Optimizer updates per pass over a generation batch.")
    skip_zero_advantage: bool = Field(
        True,
        description="Do not compute samples of advantage 0 where their gradient is 0; they count in every normaliser.",
    )
    mask_truncated_completions: bool = Field(False, description="Leave truncated completions out of the loss.")
    top_entropy_quantile: Share = Field(
        1.0, description="Share of the tokens of an update, those of highest entropy, that have a policy term; 1: all."
    )
    entropy_coef: float = Field(
        0.0, ge=0.0, description="Weight of an entropy bonus; with use_adaptive_entropy the one to start from."
    )
    use_adaptive_entropy: bool = Field(
        False,
        description="Move entropy_coef after every update: up at an entropy of entropy_target or below, else down.",
    )
    entropy_target: Positive | None = Field(
        None, description="Nats per token, for use_adaptive_entropy, which needs it: the bonus acts at or below it."
    )
    entropy_coef_min: float = Field(0.0, ge=0.0, description="Lower bound of an adaptive entropy_coef.")
    entropy_coef_max: float = Field(1.0, ge=0.0, description="Upper bound of an adaptive entropy_coef.")
    entropy_coef_delta: Positive = Field(0.005, description="Step of an adaptive entropy_coef, once an update.")
    router_aux_loss_coef: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | Literal["model"] = Field(
        0.0, description="Weight of an MoE model's load-balancing loss; model: as its configuration says, else 0."
    )
    max_staleness: int = Field(0, ge=0, le=16, description="Versions a token may lag behind; 0: synchronous GRPO.")
    dynamic_sampling: bool = Field(
        False, description="Replace groups with equal rewards by groups of further prompts, from which is learnt."
    )
    max_refills: int = Field(
        3, ge=1, le=100, description="Limit of dynamic_sampling: replaced groups of a step, in batches of groups."
    )
    importance_sampling_correction: bool = Field(
        True, description="Weigh tokens by the trainer's over the server's probability."
    )
    importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "token_truncate"
    )
    importance_sampling_clip_max: Positive = 3.0
    importance_sampling_clip_min: Positive | None = Field(
        None, description="Lower bound of the correction; with a mask of tokens, 0.5 and a maximum of 5 are IcePop's."
    )
    off_policy_mask_threshold: Positive | None = Field(
        None,
        description="Leave out completions of negative advantage whose mean of log(sampler / policy) is above this.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        preset = LOSS_TYPES.get(given.get("loss_type", "dapo"))
        return {**(preset.settings if preset else {}), **given}

    @field_validator("kl_estimator", mode="before")
    @classmethod
    def _k1_is_for_the_reward(cls, given: Any) -> Any:
        if given == "k1":
            raise ValueError("k1 as a term of the loss has no gradient on average; set algorithm.kl_in_reward for it")
        return given

    @field_validator("router_aux_loss_coef", mode="before")
    @classmethod
    def _a_weight_or_the_models_own(cls, given: Any) -> Any:
        try:
            is_weight = not isinstance(given, bool) and 0.0 <= float(given) < math.inf
        except (TypeError, ValueError):
            is_weight = False
        if not is_weight and given != "model":
            raise ValueError("takes a weight of 0 or more, or model: that of the model's configuration")
        return given

    @model_validator(mode="after")
    def _bounds_of_the_correction(self) -> Self:
        if (self.importance_sampling_clip_min or 0.0) >= self.importance_sampling_clip_max:
            raise ValueError(
                f"importance_sampling_clip_min {self.importance_sampling_clip_min:g} is not below "
                f"importance_sampling_clip_max {self.importance_sampling_clip_max:g}"
            )
        return self

    @model_validator(mode="after")
    def _beta_of_the_kl_in_the_reward(self) -> Self:
        if self.kl_in_reward and self.beta == 0.0:
            raise ValueError(
                "kl_in_reward subtracts beta · KL from the rewards, and beta is 0: set beta, or kl_in_reward false"
            )
        return self

    @model_validator(mode="after")
    def _adaptive_entropy(self) -> Self:
        if not self.use_adaptive_entropy:
            for name in ("entropy_target", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} {getattr(self, name):g} is for an adaptive entropy_coef, and use_adaptive_entropy is "
                        f"false: set it true, or leave {name} out"
                    )
            return self
        if self.entropy_target is None:
            raise ValueError(
                "use_adaptive_entropy needs entropy_target, in nats per token: take a value near the metric entropy of "
                "a run's first steps, below which it shall not fall (TRL's 0.2 is that of a policy near collapse)"
            )
        if self.entropy_coef_min > self.entropy_coef_max:
            raise ValueError(
                f"entropy_coef_min {self.entropy_coef_min:g} is above entropy_coef_max {self.entropy_coef_max:g}"
            )
        if not self.entropy_coef_min <= self.entropy_coef <= self.entropy_coef_max:
            raise ValueError(
                f"entropy_coef {self.entropy_coef:g}, from which use_adaptive_entropy starts, is not between "
                f"entropy_coef_min {self.entropy_coef_min:g} and entropy_coef_max {self.entropy_coef_max:g}"
            )
        return self

    @property
    def has_entropy_bonus(self) -> bool:
        return self.entropy_coef > 0.0 or self.use_adaptive_entropy

    @property
    def load_balancing_coef(self) -> float:
        """Weight of the load-balancing loss. Raises ValueError before the model's own weight has been read."""
        if self.router_aux_loss_coef == "model":
            raise ValueError("the model's own router_aux_loss_coef has not been read")
        return self.router_aux_loss_coef

    @property
    def beta_of_loss(self) -> float:
        """Weight of the KL term of the loss: 0 when the KL is in the reward."""
        return 0.0 if self.kl_in_reward else self.beta

    @property
    def masks_low_entropy(self) -> bool:
        return self.top_entropy_quantile < 1.0

    @property
    def surrogate_name(self) -> str:
        return self.loss or LOSS_TYPES[self.loss_type].surrogate

    @property
    def normaliser_name(self) -> str:
        return self.normaliser or LOSS_TYPES[self.loss_type].normaliser

    @property
    def upper_epsilon(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high
