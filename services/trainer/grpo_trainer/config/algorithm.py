"""The section `algorithm` of a run file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .section import Positive, Section, Share

LOSS_TYPES = {
    "grpo": ("clipped", "grpo"),
    "bnpo": ("clipped", "bnpo"),
    "dr_grpo": ("clipped", "dr_grpo"),
    "dapo": ("clipped", "dapo"),
}
"""Surrogate and normaliser of each `loss_type`."""


class AlgorithmConfig(Section):
    """Loss, advantages and staleness."""

    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = Field(
        "dapo", description="A preset of surrogate and normaliser, under TRL's name."
    )
    advantage_estimator: str = Field(
        "grpo",
        min_length=1,
        description="Rewards → advantages: grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, gdpo, maxrl, "
        "pass_at_k; your own is FILE.py:NAME.",
    )
    loss: str | None = Field(
        None, min_length=1, description="Loss of a token, instead of the preset's; your own is FILE.py:NAME."
    )
    normaliser: str | None = Field(
        None, min_length=1, description="Weight of a token, instead of the preset's; your own is FILE.py:NAME."
    )
    scale_rewards: Literal["group", "batch", "none"] | None = Field(
        None, description="Standard deviation that divides the advantages; absent: the estimator's own."
    )
    epsilon: Share = Field(0.2, description="Lower clip of the importance ratio: 1 - epsilon.")
    epsilon_high: float | None = Field(None, gt=0.0, description="Upper clip: 1 + epsilon_high; epsilon when absent.")
    delta: float | None = Field(None, gt=1.0, description="Upper bound of the ratio where the clip sets none.")
    beta: float = Field(0.0, ge=0.0, description="Weight of the KL term (k3) to the reference model; 0: no reference.")
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
    entropy_coef: float = Field(0.0, ge=0.0, description="Weight of an entropy bonus.")
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

    @model_validator(mode="after")
    def _beta_of_the_kl_in_the_reward(self) -> Self:
        if self.kl_in_reward and self.beta == 0.0:
            raise ValueError(
                "kl_in_reward subtracts beta · KL from the rewards, and beta is 0: set beta, or kl_in_reward false"
            )
        return self

    @property
    def beta_of_loss(self) -> float:
        """Weight of the KL term of the loss: 0 when the KL is in the reward."""
        return 0.0 if self.kl_in_reward else self.beta

    @property
    def surrogate_name(self) -> str:
        return self.loss or LOSS_TYPES[self.loss_type][0]

    @property
    def normaliser_name(self) -> str:
        return self.normaliser or LOSS_TYPES[self.loss_type][1]

    @property
    def upper_epsilon(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high
