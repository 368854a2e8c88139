"""The messages of a weight push: session → begin → (buckets, outside HTTP) → commit, or abort.

A push is verified: the commit carries the digest of the bytes the trainer sent, and the server answers 200 only when
every worker's digest of the bytes it received is the same.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .base import Request, Response

Kind = Literal["full", "lora"]
"""What is pushed: every parameter, or an adapter."""
Backend = Literal["gloo", "nccl"]
WeightStateName = Literal["initial", "loading", "current", "stale"]
"""State of a rollout server's weights: as loaded at its start, in a push, a whole policy, or none that may serve."""
DeadlineS = Annotated[float, Field(gt=0, le=3600)]
Session = Annotated[int, Field(ge=1, description="Grows with every start of a trainer: epoch milliseconds.")]

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
DIGEST_ALGORITHM = "weighted-sum-64/1"


class Rendezvous(Request):
    """Where the members of a weight group meet: the trainer's TCP store."""

    host: str = Field(min_length=1)
    port: int = Field(ge=1, le=65535)


class SessionRequest(Request):
    """Trainer → rollout server: join my process group. `POST /v1/weights/session`.

    Rank 0 is the trainer. This server's workers take `rank_offset` … `rank_offset + info.world_size - 1`.
    """

    session: Session
    trainer_id: str = Field(
        min_length=1, max_length=200, description="Lives in the run folder: a restarted trainer keeps it."
    )
    rendezvous: Rendezvous
    rank_offset: int = Field(ge=1)
    world_size: int = Field(ge=2)
    backend: Backend
    take_over: bool = Field(default=False, description="Fence off another trainer whose lease still runs.")
    lease_s: float = Field(default=600.0, gt=0, le=86400)
    deadline_s: DeadlineS = 60.0


class TensorSpec(Request):
    """One tensor, and where its bytes lie: bucket number and byte offset in it."""

    name: str
    dtype: str
    shape: list[int]
    bucket: int = Field(ge=0)
    offset: int = Field(ge=0)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class Manifest(Request):
    """Every tensor of a push, in the order sent, and the size of every bucket in bytes."""

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
    """Trainer → rollout server: a push starts. `POST /v1/weights/begin`.

    `kind` full: the manifest equals the model's own list of tensors, less tied names. `kind` lora: adapter weights,
    with the adapter's `peft_config`.
    """

    session: Session
    version: int = Field(ge=1)
    kind: Kind = "full"
    manifest: Manifest
    peft_config: dict[str, Any] | None = None
    bucket_timeout_s: DeadlineS = Field(default=30.0, description="Limit for one bucket: how late a member may be.")
    deadline_s: DeadlineS = Field(default=300.0, description="Limit for the whole push, begin to commit.")


class CommitRequest(Request):
    """Trainer → rollout server: all buckets are out, this is their digest. `POST /v1/weights/commit`."""

    session: Session
    version: int = Field(ge=1)
    digest: str
    deadline_s: DeadlineS = 60.0


class AbortRequest(Request):
    """Trainer → rollout server: give this push up. `POST /v1/weights/abort`."""

    session: Session
    reason: str = Field(default="the trainer gave the push up", max_length=1000)


class CloseRequest(Request):
    """Trainer → rollout server: leave the process group. `DELETE /v1/weights/session`."""

    session: Session


class RenewRequest(Request):
    """Trainer → rollout server: the lease starts again. `POST /v1/weights/renew`.

    Every weights call renews it; this one does nothing else, for an update that takes longer than the lease.
    """

    session: Session


class LastPush(Response):
    seconds: float
    bytes: int
    digest: str


class PushFailure(Response):
    """How far a push had come on a server when it broke off: of several servers, the one at fault is behind."""

    num_buckets: int
    """Loaded by every worker."""
    failed_to_load: bool
    """A bucket came, and a worker could not load it. False where the next bucket did not come."""


class WeightState(Response):
    """Rollout server → anybody: what it serves. `GET /v1/weights`, and the answer of every weights call.

    `initial`: as loaded from disk, version 0. `loading`: between begin and commit. `current`: version `version`,
    verified. `stale`: something went wrong, `reason` says what; only a full push that commits ends it.
    """

    state: WeightStateName
    version: int
    session: int | None = None
    newest_session: int | None = None
    """Newest session that has been here, also a closed one: the next has to be greater. None before the first."""
    trainer_id: str | None = None
    reason: str | None = None
    last_push: LastPush | None = None
    push_failure: PushFailure | None = None
    """Of the last push, if it broke off and the workers have told; None while they are still in it."""
