"""The messages of sampling: prompts to the rollout server, groups of completions back."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ..tracing import TraceParent
from .base import Message, Request, Response, StopAtFirstFault
from .sessions_info import SessionsInfo
from .weights import WeightState

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
TokenId = Annotated[int, Field(ge=0)]
MAX_IMAGES = 16
"""Images of one prompt."""


class Prompt(Request):
    """One prompt: token ids as they are, or messages for the server's chat template.

    With `images`, `token_ids` hold the model's image placeholder once for each image, in the order of the images, as
    the chat template writes it. The server expands it to as many tokens as the image takes; `prompt_token_ids` of the
    answer are the expanded ones.
    """

    token_ids: Annotated[list[TokenId] | None, StopAtFirstFault()] = Field(default=None, min_length=1)
    messages: Annotated[list[Message] | None, StopAtFirstFault()] = Field(default=None, min_length=1)
    images: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        max_length=MAX_IMAGES,
        # Leave the field out when it is empty: an older server refuses a field that it does not have.
        exclude_if=lambda value: not value,
        description="Each the standard base64 of an encoded file: PNG, JPEG or WebP.",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="Makes the completions of this prompt reproducible."
    )

    traceparent: TraceParent | None = Field(
        default=None,
        # Leave the field out when it is null: an older server refuses a field that it does not have.
        exclude_if=lambda value: value is None,
        description="W3C Trace Context: parent of the engine's span for this prompt.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "Prompt":
        if (self.token_ids is None) == (self.messages is None):
            raise ValueError("a prompt has either token_ids or messages")
        if self.images and self.token_ids is None:
            raise ValueError(
                "images go with token_ids: render the messages with the model's chat template, which writes a "
                "placeholder for each image, and send its token ids"
            )
        return self


LEAST_TEMPERATURE = 0.01
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORDS = 64
MAX_REGEX_CHARS = 4096
MAX_STOPS_WITH_MIN_TOKENS = 100
"""vLLM's engine dies on a GPU of more than 1024 biased tokens, and of more than 128 stop tokens beside `min_tokens`:
these, and those that the model itself ends with."""
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


class StructuredOutputs(Request):
    """What form completions have; its name is vLLM's."""

    regex: str = Field(
        max_length=MAX_REGEX_CHARS,
        description="The whole completion matches it: each token is sampled among those that can still lead to a match "
        "(one that `max_tokens` cuts off is the beginning of a match). Syntax of Rust's crate `regex`: no look-around, "
        "no back-references.",
    )


def _unless(default: object) -> Callable[[object], bool]:
    """Leave a field out when it is at its default: an older server refuses a field that it does not have."""
    return lambda value: value == default


class Sampling(Request):
    """How to sample. `temperature` 0 is greedy; `top_k` 0 means no limit."""

    temperature: float = Field(
        default=1.0, ge=0.0, le=2.0, description="0, or at least 0.01: below it vLLM samples with 0.01."
    )
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=2.0)
    presence_penalty: float = Field(
        default=0.0,
        ge=-2.0,
        le=2.0,
        exclude_if=_unless(0.0),
        description="Subtracted from the logits of all tokens that the completion has already.",
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2.0,
        le=2.0,
        exclude_if=_unless(0.0),
        description="As `presence_penalty`, times how often the completion has the token.",
    )
    max_tokens: int = Field(default=1024, ge=1)
    min_tokens: int = Field(
        default=0,
        ge=0,
        exclude_if=_unless(0),
        description="No end of sequence or stop token is sampled before so many tokens, unless a regex is complete; "
        "a text of `stop` does not count before, either.",
    )
    logit_bias: dict[TokenId, Bias] = Field(
        default_factory=dict,
        max_length=MAX_BIASED_TOKENS,
        exclude_if=_unless({}),
        description="Token id → what is added to its logit, before the temperature.",
    )
    bad_words: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list,
        max_length=MAX_BAD_WORDS,
        exclude_if=_unless([]),
        description="Texts that are not sampled in the tokens that the tokenizer makes of them, alone and behind a "
        "blank; other tokens may still spell one.",
    )
    structured_outputs: StructuredOutputs | None = Field(default=None, exclude_if=_unless(None))
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="A completion ends behind the first of these texts, which stays part of it."
    )
    stop_token_ids: list[TokenId] = Field(
        default_factory=list,
        exclude_if=_unless([]),
        description="A completion ends with the first of these tokens, which `token_ids` has and `text` has not.",
    )
    logprobs: bool = Field(default=True, description="Return the logprob of every sampled token.")

    @field_validator("temperature")
    @classmethod
    def _as_sampled(cls, value: float) -> float:
        if 0.0 < value < LEAST_TEMPERATURE:
            raise ValueError(f"vLLM samples with {LEAST_TEMPERATURE} below that; 0 is greedy")
        return value

    @model_validator(mode="after")
    def _can_be_sampled(self) -> "Sampling":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        if self.min_tokens and len(self.stop) + len(self.stop_token_ids) > MAX_STOPS_WITH_MIN_TOKENS:
            raise ValueError(
                f"min_tokens goes with {MAX_STOPS_WITH_MIN_TOKENS} stop and stop_token_ids at most: leave it out"
            )
        if self.structured_outputs is not None and self.bad_words:
            raise ValueError("bad_words may leave no token that the regex allows: exclude them in the regex instead")
        return self


class RolloutRequest(Request):
    """Trainer → rollout server: `n` completions for each prompt. `POST /v1/rollouts`.

    With `session` the completions come from that trainer's weights, at `min_version` or newer; otherwise the answer is
    a 409. Without `session` they come from whatever weights the server has.
    """

    request_id: str = Field(
        min_length=1, max_length=200, description="A repeated id aborts the older request: the newest wins."
    )
    prompts: list[Prompt] = Field(min_length=1, max_length=4096)
    n: int = Field(default=1, ge=1, le=1024, description="Completions per prompt.")
    sampling: Sampling = Field(default_factory=Sampling)
    session: int | None = None
    min_version: int | None = Field(default=None, ge=0)
    deadline_s: float = Field(default=600.0, gt=0, le=86400)

    @model_validator(mode="after")
    def _version_needs_session(self) -> "RolloutRequest":
        if self.min_version is not None and self.session is None:
            raise ValueError("min_version counts within a session: send the session too")
        return self


class Completion(Response):
    """One sampled completion. `token_ids` and `logprobs` have the same length T."""

    token_ids: list[int]
    logprobs: list[float] | None = Field(
        default=None,
        description="Logprobs under the distribution that was sampled from: after temperature and truncation.",
    )
    text: str = Field(
        description="`token_ids` decoded, without the token that ended the completion (end of sequence or a stop "
        "token) and without padding. Other special tokens stay."
    )
    finish_reason: FinishReason
    versions: list[tuple[int, int]] = Field(
        description="Run-length: (policy version, number of tokens), T tokens in all."
    )


class RolloutGroup(Response):
    """The completions of one prompt."""

    prompt_token_ids: list[int]
    completions: list[Completion]


class RolloutResponse(Response):
    """Rollout server → trainer: one group for every prompt, in the order of the prompts."""

    groups: list[RolloutGroup]
    session: int | None = None
    server_id: str


class AdapterLimits(Response):
    """Which adapters a rollout server takes; set by its flags."""

    max_loras: int
    """Adapters in one batch. Each version that still samples is one."""
    max_lora_rank: int
    max_cpu_loras: int
    """Adapters in memory."""


class RolloutInfo(Response):
    """Rollout server → anybody. `GET /info`."""

    service: Literal["rollout"] = "rollout"
    version: str
    protocol_version: int
    engine: str = Field(description="Name and version of the inference engine.")
    server_id: str = Field(description="Changes at every start of the server.")
    model: str
    dtype: str
    head_dtype: str | None = Field(None, description="Dtype in which the output head computes logits.")
    tokenizer_fingerprint: str = Field(description="See `grpo_proto.fingerprint`.")
    vocabulary_fingerprint: str | None = Field(
        None, description="Of the tokens and their ids alone, see `grpo_proto.fingerprint`."
    )
    chat_template_fingerprint: str | None
    max_model_len: int
    max_images: int = Field(0, description="Images that a prompt may have; 0: the model or the server takes none.")
    world_size: int = Field(description="Workers that take part in a weight group.")
    device: Literal["cpu", "cuda"]
    gpus: list[str] = Field(default_factory=list, description="UUIDs of the GPUs of the server's workers.")
    nccl_version: str | None = Field(None, description="All members of a weight group over NCCL need the same version.")
    continues_sessions: bool = Field(
        False, description="Whether a weights session may continue another one (`SessionRequest.continues`)."
    )
    keeps_kv_cache: bool = Field(False, description="Whether it takes a push with `kv_cache` keep.")
    adapters: AdapterLimits | None = Field(None, description="None: started without --enable-lora.")
    base_digest: str | None = Field(
        None, description="Of the checkpoint it loaded, see `grpo_proto.checkpoint_files`; None until it is computed."
    )
    sessions: SessionsInfo | None = Field(None, description="None: an older server.")
    weights: WeightState
