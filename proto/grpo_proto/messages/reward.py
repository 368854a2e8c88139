"""The messages of the reward server."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ..tracing import TraceParent
from .base import Message, Request, Response, StopAtFirstFault

ScoreStatus = Literal["ok", "unscorable", "timeout", "error"]
MAX_REWARDS = 256
"""Most rewards in one request."""
Seconds = Annotated[float, Field(gt=0, le=3600)]
MESSAGES = "messages"
"""Field of an episode; a reward reads it as it reads a column of that name."""


class RewardSpec(Request):
    """One reward to compute: its registered name, its weight in the total and its parameters."""

    name: str = Field(min_length=1)
    weight: float = Field(default=1.0, description="Factor of this reward's score in the total.")
    params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the reward; `GET /v1/rewards` lists them."
    )


class ScoreSample(Request):
    """One completion to score, with the dataset's columns under their own names."""

    id: str | None = Field(default=None, description="Echoed in the result; the sample's position when absent.")
    completion: str
    prompt: str | Annotated[list[Message], StopAtFirstFault()] | None = None
    columns: dict[str, Any] = Field(default_factory=dict)
    completion_token_ids: Annotated[list[int], StopAtFirstFault()] | None = None
    messages: Annotated[list[Message], StopAtFirstFault()] | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The whole conversation of an episode of several turns; `completion` is what was said last.",
    )
    truncated: bool | None = Field(default=None, description="True when the completion ended at its length limit.")
    traceparent: TraceParent | None = Field(
        default=None,
        # Leave the field out when it is null: an older server refuses a field that it does not have.
        exclude_if=lambda value: value is None,
        description="W3C Trace Context: parent of the server's span for this sample.",
    )

    def has_column(self, name: str) -> bool:
        """Return whether a reward that reads the column gets it; an episode's conversation is the column `messages`."""
        return name in self.columns or (name == MESSAGES and self.messages is not None)


class ScoreRequest(Request):
    """Trainer → reward server: score every sample with every reward. `POST /v1/score`."""

    rewards: list[RewardSpec] = Field(min_length=1, max_length=MAX_REWARDS)
    samples: list[ScoreSample]
    step: int | None = Field(default=None, ge=0, description="Training step, for rewards that follow a schedule.")
    timeout_s: Seconds = Field(default=10.0, description="Limit for one sample and one reward.")
    deadline_s: Seconds = Field(default=60.0, description="Limit for the whole request.")

    def left_open(self) -> set[str]:
        """Time limits that the caller left out: a server may allow less than the defaults."""
        return {"timeout_s", "deadline_s"} - self.model_fields_set

    @field_validator("rewards")
    @classmethod
    def _distinct_names(cls, rewards: list[RewardSpec]) -> list[RewardSpec]:
        repeated = sorted(name[:80] for name, count in Counter(reward.name for reward in rewards).items() if count > 1)
        if repeated:
            raise ValueError(f"each reward once, but {', '.join(repeated)} came several times")
        return rewards


class RewardScore(Response):
    """One reward of one sample. `score` is null unless `status` is `ok`: null is never 0."""

    score: float | None
    status: ScoreStatus
    detail: str | None = Field(default=None, description="Why there is no score, or what the score leaves out.")
    log: dict[str, Any] | None = Field(default=None, description="Columns for the completion log.")
    metrics: dict[str, float] | None = Field(default=None, description="Numbers to average over the batch.")


class ScoreResult(Response):
    """All rewards of one sample."""

    id: str
    total: float | None = Field(
        description="Sum of weight times score, over the rewards with a weight and a score. Null when no such reward "
        "exists, when a reward with a weight ended in timeout or error, or when the sum is not finite."
    )
    rewards: dict[str, RewardScore]


class ScoreResponse(Response):
    """Reward server → trainer: one result for every sample, in the order of the samples."""

    results: list[ScoreResult]
    elapsed_s: float
    code_hashes: dict[str, str] = Field(
        default_factory=dict, description="`code_hash` of each reward that was computed."
    )


class RewardDescription(Response):
    """A reward's documentation, parameters and columns."""

    name: str
    documentation: str
    params_schema: dict[str, Any] = Field(description="JSON schema of `params`, with defaults.")
    columns: list[str] = Field(description="Dataset columns every sample must have.")
    code_hash: str = Field(
        description="SHA-256 of the reward's file, of the files it imports from its own folder, and of its model."
    )
    batch: bool = Field(
        default=False,
        description="Whether the reward scores all samples of a request in one call, and may compare them.",
    )
    unavailable: str | None = Field(
        default=None,
        description="Why this server refuses requests for the reward; null when it computes the reward.",
    )

    def unknown_params(self, given: Iterable[str]) -> list[str]:
        """Return those of the given params that the reward does not take."""
        return [name for name in given if name not in self.params_schema.get("properties", {})]

    def missing_params(self, given: Collection[str]) -> list[str]:
        """Return the params that the reward needs, and that are not given."""
        return [name for name in self.params_schema.get("required", []) if name not in given]


class RewardList(Response):
    """Reward server → anybody. `GET /v1/rewards`."""

    rewards: list[RewardDescription]


class RewardInfo(Response):
    """Reward server → anybody. `GET /info`."""

    service: Literal["reward"] = "reward"
    version: str
    protocol_version: int
    rewards: dict[str, str] = Field(description="Reward name → SHA-256 of its source.")
    workers: int
