"""The messages of scoring: token sequences to the rollout server, the logprobs of their tokens back."""

from typing import Annotated

from pydantic import Field, model_validator

from .base import Request, Response, StopAtFirstFault
from .rollout import TokenId


class GivenSequence(Request):
    """A sequence whose tokens are given. The first `num_prompt_tokens` are context and get no logprob."""

    token_ids: Annotated[list[TokenId], StopAtFirstFault()] = Field(min_length=2)
    num_prompt_tokens: int = Field(ge=1, description="At least 1: the first token of a sequence has no logprob.")

    @model_validator(mode="after")
    def _something_to_score(self) -> "GivenSequence":
        if self.num_prompt_tokens >= len(self.token_ids):
            raise ValueError(
                f"num_prompt_tokens {self.num_prompt_tokens} leaves nothing to score of {len(self.token_ids)} token_ids"
            )
        return self


class LogprobsRequest(Request):
    """Trainer → rollout server: the logprobs of given tokens under the weights it serves. `POST /v1/logprobs`.

    A repeat is safe: it has no effects.
    """

    sequences: list[GivenSequence] = Field(min_length=1, max_length=4096)
    deadline_s: float = Field(default=600.0, gt=0, le=86400)


class SequenceLogprobs(Response):
    """What the weights of one version make of a sequence: one logprob for each token after the prompt, in order."""

    logprobs: list[float] = Field(description="At temperature 1, over the whole vocabulary.")
    version: int = Field(description="Policy version of the weights; 0 as loaded from disk.")


class LogprobsResponse(Response):
    """Rollout server → trainer: one entry for every sequence, in the order of the sequences."""

    sequences: list[SequenceLogprobs]
    session: int | None = Field(None, description="Of the trainer that pushed the weights; None as loaded from disk.")
    server_id: str
