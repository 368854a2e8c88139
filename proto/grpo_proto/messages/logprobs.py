"""The messages of scoring: token sequences to the rollout server, the logprobs of their tokens back."""

from typing import Annotated

from pydantic import Field, model_validator

from .base import Request, Response, StopAtFirstFault
from .rollout import MAX_IMAGES, TokenId


class GivenSequence(Request):
    """A sequence whose tokens are given. The first `num_prompt_tokens` are context and get no logprob.

    With `images`, the context holds the model's image placeholder once for each, as in `Prompt`; the server expands it.
    """

    token_ids: Annotated[list[TokenId], StopAtFirstFault()] = Field(min_length=2)
    num_prompt_tokens: int = Field(ge=1, description="At least 1: the first token of a sequence has no logprob.")
    images: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        max_length=MAX_IMAGES,
        # Leave the field out when it is empty: an older server refuses a field that it does not have.
        exclude_if=lambda value: not value,
        description="Numbers of the images of its context among those of the request, in order.",
    )

    @property
    def prompt_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def num_scored(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

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
    images: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        max_length=4096,
        exclude_if=lambda value: not value,
        description="Those of all sequences, each the standard base64 of an encoded file: PNG, JPEG or WebP.",
    )
    deadline_s: float = Field(default=600.0, gt=0, le=86400)

    @model_validator(mode="after")
    def _images_are_there(self) -> "LogprobsRequest":
        for position, sequence in enumerate(self.sequences):
            if sequence.images and max(sequence.images) >= len(self.images):
                raise ValueError(
                    f"sequence {position} names image {max(sequence.images)}, and the request has {len(self.images)}"
                )
        return self


class SequenceLogprobs(Response):
    """What the weights of one version make of a sequence: one logprob for each token after the prompt, in order."""

    logprobs: list[float] = Field(description="At temperature 1, over the whole vocabulary.")
    version: int = Field(description="Policy version of the weights; 0 as loaded from disk.")


class LogprobsResponse(Response):
    """Rollout server → trainer: one entry for every sequence, in the order of the sequences."""

    sequences: list[SequenceLogprobs]
    session: int | None = Field(None, description="Of the trainer that pushed the weights; None as loaded from disk.")
    server_id: str
