"""The messages of a weight push: session → begin → (buckets, outside HTTP) → commit, or abort.

The server verifies a push: a commit carries the digest of the bytes that the trainer sent, and gets a 200 only when
every worker's digest of the bytes it received is equal.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import Request, Response

Kind = Literal["full", "lora"]
"""What is pushed: every parameter, or an adapter."""
KvCache = Literal["recompute", "keep"]
"""What becomes of the KV cache of running sequences at a push of all weights."""
Backend = Literal["gloo", "nccl"]
WeightStateName = Literal["initial", "loading", "current", "stale"]
"""State of a rollout server's weights: loaded from disk, in a push, verified, or not fit to serve."""
Verification = Literal["probe", "canary"]
"""A probe of each layer around vLLM's own packing; the trainer's comparison of sampled logprobs with its own."""
DeadlineS = Annotated[float, Field(gt=0, le=3600)]
Session = Annotated[int, Field(ge=1, lt=2**63, description="Grows with every start of a trainer: epoch milliseconds.")]

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
DIGEST_ALGORITHM = "weighted-sum-64/1"


class Rendezvous(Request):
    """Where the workers find the trainer: its end of their lifelines, see `grpo_proto.lifeline`."""

    host: str = Field(min_length=1)
    port: int = Field(ge=1, le=65535)


class SessionRequest(Request):
    """Trainer → rollout server: join my process group. `POST /v1/weights/session`.

    Rank 0 is the trainer. This server's workers take `rank_offset` … `rank_offset + info.world_size - 1`.
    """

    session: Session
    trainer_id: str = Field(
        min_length=1, max_length=200, description="Stored in the run folder: a restarted trainer keeps it."
    )
    rendezvous: Rendezvous
    secret: str = Field(
        min_length=32, max_length=200, repr=False, description="Proves at the rendezvous who may join this session."
    )
    continues: Session | None = Field(
        default=None,
        description="The last session that this process asked the server to join: what is sampled in it goes on in the "
        "new one. Only to a server whose `RolloutInfo.continues_sessions` says so.",
    )
    rank_offset: int = Field(ge=1)
    world_size: int = Field(ge=2)
    backend: Backend
    take_over: bool = Field(default=False, description="Fence off another trainer whose lease still runs.")
    lease_s: float = Field(default=600.0, gt=0, le=86400)
    silence_s: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="Silence of the trainer in a push that counts as its death; 0: none does.",
    )
    trial_bytes: int = Field(
        default=0,
        ge=0,
        le=2**36,
        description="Receive a bucket of so many zeros before the answer, which shows that data comes through.",
    )
    deadline_s: DeadlineS = 60.0

    def left_open(self) -> set[str]:
        """`continues` when there is none: older servers refuse a field that they do not know."""
        return {"continues"} if self.continues is None else set()


class TensorSpec(Request):
    """One tensor, and the place of its bytes: bucket number, and byte offset in the bucket."""

    name: str
    dtype: str
    shape: list[int]
    bucket: int = Field(ge=0)
    offset: int = Field(ge=0)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class Manifest(Request):
    """Every tensor of a push, in the order of sending, and the size of every bucket in bytes."""

    tensors: list[TensorSpec] = Field(min_length=1)
    bucket_bytes: list[int] = Field(min_length=1)
    digest_algorithm: str = DIGEST_ALGORITHM

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        names: set[str] = set()
        for tensor in self.tensors:
            if tensor.dtype not in DTYPE_BYTES:
                raise ValueError(f"{tensor.name}: dtype {tensor.dtype} is none of {', '.join(DTYPE_BYTES)}")
            if tensor.name in names:
                raise ValueError(f"{tensor.name} is named twice")
            names.add(tensor.name)
            if tensor.bucket >= len(self.bucket_bytes):
                raise ValueError(f"{tensor.name} lies in bucket {tensor.bucket} of {len(self.bucket_bytes)}")
            if tensor.offset + tensor.num_bytes > self.bucket_bytes[tensor.bucket]:
                raise ValueError(f"{tensor.name} reaches beyond the end of bucket {tensor.bucket}")
        return self


class BeginRequest(Request):
    """Trainer → rollout server: start a push. `POST /v1/weights/begin`.

    `kind` full: the manifest equals the model's own list of tensors, without tied names and without those of a frozen
    part that are declared `absent`. `kind` lora: the tensors of an adapter, with its `peft_config` and the digest of
    the checkpoint that it was trained on.

    `kv_cache` keep: running sequences sample their next tokens with the new weights on the keys and values of the old
    weights. Only between versions of one session or of one that continues it, and without meaning for an adapter. A new
    request is computed by the new weights alone either way. `RolloutInfo.keeps_kv_cache` says whether the server knows
    it.
    """

    session: Session
    version: int = Field(ge=1)
    kind: Kind = "full"
    manifest: Manifest
    absent: list[str] = Field(default_factory=list, description="Tensors of the model that stay as they are.")
    peft_config: dict[str, Any] | None = Field(default=None, description="adapter_config.json of PEFT; lora only.")
    base_digest: str | None = Field(
        default=None, description="See `grpo_proto.checkpoint_files.checkpoint_digest`; lora only."
    )
    kv_cache: KvCache = Field(
        default="recompute",
        # Leave the field out at its default: an older server refuses a field that it does not have.
        exclude_if=lambda value: value == "recompute",
        description="Recompute the KV cache of running sequences under the new weights, or keep it.",
    )
    bucket_timeout_s: DeadlineS = Field(default=30.0, description="Timeout of one bucket: how late a member may be.")
    deadline_s: DeadlineS = Field(default=300.0, description="Deadline of the whole push, from begin to commit.")


class CommitRequest(Request):
    """Trainer → rollout server: serve the buckets, if their digest is this one. `POST /v1/weights/commit`."""

    session: Session
    version: int = Field(ge=1)
    digest: str
    deadline_s: DeadlineS = 60.0


class AbortRequest(Request):
    """Trainer → rollout server: abandon this push. `POST /v1/weights/abort`."""

    session: Session
    reason: str = Field(default="the trainer gave the push up", max_length=1000)


class CloseRequest(Request):
    """Trainer → rollout server: leave the process group. `DELETE /v1/weights/session`."""

    session: Session


class RenewRequest(Request):
    """Trainer → rollout server: renew the lease. `POST /v1/weights/renew`.

    Every weights call renews the lease. This call serves an update that outlasts the lease, and tells the server that
    the canary of a version agreed.
    """

    session: Session
    canary_agreed: int | None = Field(
        default=None, ge=1, description="The version whose served logprobs equal the trainer's own."
    )


class LastPush(Response):
    seconds: float
    bytes: int
    digest: str


class WeightState(Response):
    """Rollout server → anybody: the weights it serves. `GET /v1/weights`, and the answer of every weights call.

    `initial`: as loaded from disk, version 0. `loading`: between begin and commit. `current`: verified, at `version`.
    `stale`: serves nobody, for `reason`, until a full push commits.

    An adapter push leaves the state as it is until its commit. When it fails nothing changes, and `reason` says why.
    """

    state: WeightStateName
    version: int
    session: int | None = None
    newest_session: int | None = None
    """Newest session so far, open or closed: the next session must be greater. None before the first session."""
    trainer_id: str | None = None
    lease_left_s: float | None = None
    """Seconds in which the server refuses other trainers. None without a session, and from an older server."""
    reason: str | None = None
    last_push: LastPush | None = None
    verified_by: list[Verification] = Field(default_factory=list)
    """How it was verified that the served version computes what was pushed; empty: not at all."""
