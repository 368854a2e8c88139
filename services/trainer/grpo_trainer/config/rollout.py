"""The section `rollout`: the rollout servers, and how they sample."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from grpo_proto.messages.rollout import (
    LEAST_TEMPERATURE,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_REGEX_CHARS,
    Bias,
)

from .section import Seconds, Section, ServerUrl, Share

UNDISTORTED: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "logit_bias": {},
    "bad_words": [],
    "structured_outputs_regex": None,
}
"""Setting → its value with which the servers sample from the policy at `temperature`."""


class RolloutConfig(Section):
    """The rollout servers, and how they sample."""

    urls: list[ServerUrl] = Field(
        ["http://127.0.0.1:8000"], min_length=1, description="One URL for every rollout server."
    )
    num_generations: int = Field(8, ge=1, description="Completions per prompt: the size G of a group.")
    generation_batch_size: int = Field(512, ge=1, description="Completions per step; num_generations divides it.")
    max_completion_length: int = Field(512, ge=1, description="Limit of a completion in tokens.")
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=2.0, description="From 0.01 to 2, as vLLM samples.")
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0, description="0: no limit.")
    min_p: Share = 0.0
    repetition_penalty: float = Field(1.0, gt=0.0, le=2.0)
    presence_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Subtracted from the logits of tokens that the completion has already."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="As presence_penalty, times how often the completion has the token."
    )
    min_tokens: int = Field(0, ge=0, description="No completion ends before so many tokens.")
    logit_bias: dict[Annotated[int, Field(ge=0)], Bias] = Field(
        default_factory=dict, max_length=MAX_BIASED_TOKENS, description="Token id → what is added to its logit."
    )
    bad_words: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list, max_length=MAX_BAD_WORDS, description="Texts whose tokens are not sampled in a row."
    )
    structured_outputs_regex: str | None = Field(
        None,
        max_length=MAX_REGEX_CHARS,
        description="Sample only what leads to a match of the whole completion; the syntax is that of Rust's crate "
        "regex. absent: free text.",
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="A completion ends behind the first of these texts, which is trained and which the rewards see.",
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        description="A completion ends with the first of these tokens, as with the end of sequence: trained, and no "
        "part of the text.",
    )
    prompts_per_request: int | None = Field(
        None,
        ge=1,
        description="Groups sampled and scored by one request; all of them wait for the slowest sequence. null: a "
        "quarter of a server's share of the batch.",
    )
    request_deadline_s: Seconds = Field(600.0, description="Limit for sampling the groups of one request.")
    startup_timeout_s: Seconds = Field(
        900.0, description="Time for min_replicas servers to come up; the run stops with fewer."
    )
    retry_for_s: Seconds = Field(
        300.0, description="Retry budget of a group, from its first loss on; then the run stops."
    )
    min_replicas: int = Field(
        1,
        ge=1,
        description="Continue with this many healthy servers, stop with fewer. The start waits 60 s more for the "
        "other servers; a later server gets weights with the next push.",
    )

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.generation_batch_size % self.num_generations:
            below = self.generation_batch_size // self.num_generations * self.num_generations
            raise ValueError(
                f"num_generations {self.num_generations} does not divide generation_batch_size "
                f"{self.generation_batch_size}; take {below or self.num_generations} or {below + self.num_generations}"
            )
        if self.min_replicas > len(self.urls):
            raise ValueError(f"min_replicas {self.min_replicas} is more than the {len(self.urls)} urls")
        return self

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        if self.min_tokens > self.max_completion_length:
            raise ValueError(
                f"min_tokens {self.min_tokens} is more than max_completion_length {self.max_completion_length}"
            )
        if self.structured_outputs_regex is not None and self.bad_words:
            raise ValueError(
                "bad_words may leave no token that structured_outputs_regex allows: exclude them in the regex instead"
            )
        return self

    @property
    def groups_per_batch(self) -> int:
        return self.generation_batch_size // self.num_generations

    @property
    def groups_per_request(self) -> int:
        """`prompts_per_request`, or what fills the engine at once: sequences that arrive one after another are computed
        in many small steps. A quarter leaves rewards to be computed while others are sampled."""
        return self.prompts_per_request or max(1, self.groups_per_batch // (4 * len(self.urls)))

    @property
    def distorting(self) -> list[str]:
        """Settings with which the server samples from, and reports logprobs of, another distribution than the policy's
        at `temperature`, which the trainer computes."""
        return [
            f"rollout.{name} {_shown(getattr(self, name))}"
            for name, value in UNDISTORTED.items()
            if getattr(self, name) != value
        ]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
