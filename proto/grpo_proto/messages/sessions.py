"""The messages of `/v1/sessions`: an episode of several turns, recorded on the rollout server token by token."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import Message, Request, Response, StopAtFirstFault
from .rollout import FinishReason, Sampling, TokenId

Status = Literal["completed", "truncated", "timeout", "failed"]
Cause = Literal["policy", "program", "infrastructure"]
RECORD_KEPT_S = 600.0
"""Time for which a server keeps the record of an ended session."""


class SessionLimits(Request):
    """What ends a session as `truncated` by the policy. Time in which its weights are not served does not count."""

    max_turns: int = Field(default=16, ge=1)
    max_segments: int = Field(default=16, ge=1, description="A full render and a branch each begin a segment.")
    max_sampled_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Of all turns together; a turn that it cuts is the last. Turns that run at once may each sample "
        "what was left when they began.",
    )
    max_context_tokens: int | None = Field(
        default=None, ge=2, description="Of one prompt and its answer; default: the server's --max-model-len."
    )
    deadline_s: float = Field(default=600.0, gt=0, le=7 * 86400)
    idle_s: float = Field(default=300.0, gt=0, le=7 * 86400, description="Time without a request.")


class OpenSession(Request):
    """Trainer → rollout server: record an episode. `POST /v1/sessions`.

    An open session of this id ends: the newest wins.
    """

    session_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9._-]{1,200}$", description="Default: a random id. It is part of the URL."
    )
    group_id: str | None = Field(default=None, max_length=200)
    weights_session: int | None = Field(
        default=None, description="Sample from this trainer's weights alone; requests wait for them."
    )
    min_version: int | None = Field(default=None, ge=0, description="Requests wait for this version or a newer one.")
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="Makes every turn reproducible.")
    sampling: Sampling = Field(default_factory=Sampling, description="Of every turn; what a program asks is overruled.")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="For the template.")
    history: Literal["exact"] = Field(default="exact", description="Turns stay in the prompt as they were sampled.")
    limits: SessionLimits = Field(default_factory=SessionLimits)

    @model_validator(mode="after")
    def _usable(self) -> "OpenSession":
        if self.min_version is not None and self.weights_session is None:
            raise ValueError("min_version counts within a weights session: send weights_session too")
        if not self.sampling.logprobs:
            raise ValueError("a session records the logprob of every sampled token: leave sampling.logprobs out")
        if self.sampling.structured_outputs is not None:
            # A turn that a failed push cuts goes on under the next weights, where the regex would begin anew.
            raise ValueError("turns are free text: leave sampling.structured_outputs out")
        return self


class SessionOpened(Response):
    """Rollout server → trainer. A program gets a base URL and `api_key`, which opens the model's routes alone."""

    session_id: str
    openai_base_url: str
    anthropic_base_url: str
    api_key: str
    control_key: str = Field(description="Opens generate, reward, close, trajectory and DELETE of this session.")


class GenerateTurn(Request):
    """Program → rollout server: sample one turn. `POST /v1/sessions/<id>/generate`.

    Either `token_ids`, the whole prompt, which goes on from the turn that it begins with; or `messages`: all of them,
    or with `parent` those behind that turn.
    """

    token_ids: Annotated[list[TokenId] | None, StopAtFirstFault()] = Field(default=None, min_length=1)
    parent: int | None = Field(default=None, ge=0, description="`turn` of an earlier answer.")
    messages: Annotated[list[Message] | None, StopAtFirstFault()] = None
    tools: list[dict[str, Any]] | None = Field(default=None, description="With `parent`: default, those of the parent.")
    max_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_prompt(self) -> "GenerateTurn":
        if (self.token_ids is None) == (self.messages is None):
            raise ValueError("a turn has either token_ids or messages")
        if self.token_ids is not None and (self.parent is not None or self.tools is not None):
            raise ValueError("token_ids are a whole prompt: leave parent and tools out")
        return self


class TurnUsage(Response):
    prompt_tokens: int
    completion_tokens: int


class GeneratedTurn(Response):
    """Rollout server → program. `token_ids` and `logprobs` have T entries; `versions` is run-length and counts T."""

    turn: int
    segment: int
    message: dict[str, Any] = Field(description="What the server's parsers read in the text.")
    text: str
    token_ids: list[int]
    logprobs: list[float]
    versions: list[tuple[int, int]]
    finish_reason: FinishReason
    usage: TurnUsage


class SessionReward(Request):
    """Trainer or environment → rollout server. `POST /v1/sessions/<id>/reward`. The same name and turn replaces."""

    name: str = Field(min_length=1, max_length=200)
    value: float | None = Field(description="Null: cannot be scored.")
    turn: int | None = Field(default=None, ge=0, description="Of one turn; null: of the episode.")
    metrics: dict[str, float] = Field(default_factory=dict)


class CloseSession(Request):
    """Trainer → rollout server. `POST /v1/sessions/<id>/close`. The server's own reason outranks it."""

    status: Status = "completed"
    cause: Cause | None = None
    detail: str | None = Field(default=None, max_length=10_000)


class SessionState(Response):
    """Rollout server → trainer: how the session stands. `status` is null while it is open."""

    session_id: str
    status: Status | None
    cause: Cause | None = None
    detail: str | None = None


class RecordedTurn(Response):
    """Tokens `start` to `end` of a segment, sampled in one go. `masked`: why it is not to be trained on."""

    start: int
    end: int
    versions: list[tuple[int, int]]
    finish_reason: FinishReason
    masked: str | None = None
    reward: dict[str, float | None] = Field(default_factory=dict)
    label: str = Field(default="", description="The model name that the program asked for.")
    text: str = ""
    turn: int


class RecordedSegment(Response):
    """A sequence from position 0. `logprobs`: one for each token of its turns, in order.

    `images`: the names in `Trajectory.images` of those that its context shows, in order; `image_starts`: where the
    tokens of each begin. `token_ids` hold the model's image token at each of its places.
    `parent`, `fork_at`, `fork_reason`: where it branched off, information only.
    """

    token_ids: list[int]
    turns: list[RecordedTurn]
    logprobs: list[float]
    parent: int | None = None
    fork_at: int | None = None
    fork_reason: str | None = None
    images: list[str] = Field(default_factory=list)
    image_starts: list[int] = Field(default_factory=list)
    messages: list[dict[str, Any]] = Field(description="A part of an image has its name: {type: image, image: name}.")


class SessionStats(Response):
    """`sampled` = trained + `masked`, in tokens. `masked`, `fork_reasons`: by reason."""

    turns: int
    forks: int
    fork_reasons: dict[str, int]
    sampled: int
    masked: dict[str, int]
    overruled: int = Field(description="Fields of requests that the session's sampling overruled.")
    control_tokens: int = Field(description="Special tokens that stood in texts of users and tools.")
    doubled_openers: int = 0


class Trajectory(Response):
    """Rollout server → trainer. `GET /v1/sessions/<id>/trajectory`. Segments in the order of their first request."""

    session_id: str
    group_id: str | None = None
    status: Status | None
    cause: Cause | None = None
    detail: str | None = None
    rewards: dict[str, float | None]
    metrics: dict[str, float] = Field(default_factory=dict)
    stats: SessionStats
    segments: list[RecordedSegment]
    images: dict[str, str] = Field(
        default_factory=dict, description="Name → the base64 of the encoded file, for each image of the segments."
    )
