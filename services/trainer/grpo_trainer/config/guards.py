"""The section `guards` of a run file: what a run does when its metrics go wrong."""

from typing import Literal

from pydantic import Field

from .section import Positive, Section, Share

Action = Literal["ignore", "warn", "rollback", "stop"]
RULES = ("kl", "entropy", "mismatch", "zero_spread", "clipped", "length_growth", "repetition", "failing_reward")
"""Each is a field of `GuardsConfig` beside its limit."""


class GuardsConfig(Section):
    """Rules on the last steps: ignore, warn, go back to the last good checkpoint, or stop the run."""

    steps: int = Field(
        5, ge=1, le=1000, description="A rule acts when the last step and 4/5 of this many last steps break it."
    )
    max_rollbacks: int = Field(2, ge=1, le=1000, description="Rollbacks of a whole run; the next one stops it.")
    kl: Action = Field("warn", description="KL to the reference model above kl_limit.")
    kl_limit: Positive = Field(5.0, description="Nats per token; a policy that learns stays below 1.")
    entropy: Action = Field("warn", description="Entropy below entropy_limit.")
    entropy_limit: Positive = Field(1e-3, description="Nats per token; below it the policy repeats one completion.")
    with_fallen_reward: bool = Field(
        True, description="kl and entropy count only in steps with less than half of the run's best reward."
    )
    mismatch: Action = Field("warn", description="Trainer's and servers' logprobs differ by more than mismatch_limit.")
    mismatch_limit: Positive = Field(0.1, description="Mean absolute difference in nats, over fresh tokens.")
    zero_spread: Action = Field("warn", description="Share of samples in groups with equal rewards.")
    zero_spread_limit: Share = 0.95
    clipped: Action = Field("stop", description="Share of completions cut off at max_completion_length.")
    clipped_limit: Share = 0.9
    length_growth: Action = Field("warn", description="Mean length over that of the 20 steps before the last `steps`.")
    length_growth_limit: float = Field(3.0, gt=1.0)
    repetition: Action = Field("warn", description="Mean share of 4-grams that their completion had before.")
    repetition_limit: Share = 0.5
    failing_reward: Action = Field("warn", description="Share of one reward's scores lost to errors and timeouts.")
    failing_reward_limit: Share = 0.05

    def action_of(self, rule: str) -> Action:
        action: Action = getattr(self, rule)
        return action

    @property
    def rollback_rules(self) -> list[str]:
        """The rules whose action is `rollback`."""
        return [rule for rule in RULES if self.action_of(rule) == "rollback"]
