"""The wire of grpo-services: the messages between its three services, and typed clients that send them.

messages/          every message, a file for each server's routes
client/            typed HTTP clients (needs httpx)
server/            what the servers share: socket, HTTP connection, refusals (needs uvicorn and starlette)
checkpoint_files.py  the tensors of a checkpoint in safetensors: headers, digest
checkpoint_layout.py  how a checkpoint's tensors are made from a model's parameters (needs torch, transformers)
transport.py       move weights: buckets, digest, process group; gloo_connections.py what it forms with (need torch)
staging.py         the buffers of a push's buckets, at both of its ends (needs torch)
lifeline/          a connection of each worker to rank 0: who may join a push, who has died
server_url.py      what is the URL of a server
api_token.py       the servers' token: read it from the environment, check a request for it
reward_log.py      what a reward for TRL logs beside its scores; diagnostics.py: that, as plain JSON
nesting.py         how deep a JSON value is nested
totals.py          a sample's total reward, and a retry of the scores that broke
code_hash.py       a digest of a reward's source files
fingerprint.py     short digests of a tokenizer and of a chat template
images.py          the images of a prompt, decoded alike by rollout server and trainer (needs Pillow)
nulls.py           drop the nulls with which Arrow fills up objects
swift_stand_in.py  what files written for ms-swift import, where it is not installed
tool_arguments.py  the arguments of a tool call, as chat templates read them
loopback.py        which addresses only this machine can reach
quick_imports.py   collect garbage seldom while large libraries are imported
log_parts.py       a log that is split into parts by its size
log_lines.py       log formatters for text and JSON, without secrets
fewer_repeats.py   a log filter that passes a repeated line now and then, with a count
tracing.py         export spans to an OpenTelemetry receiver
"""

from typing import TYPE_CHECKING, Any

from .messages.base import PROTOCOL_VERSION, Message, Request, Response
from .messages.errors import (
    ConflictError,
    DataError,
    ErrorBody,
    ErrorDetail,
    FatalError,
    InfrastructureError,
    ServiceError,
    error_class,
)
from .messages.health import Health
from .messages.reward import (
    RewardDescription,
    RewardInfo,
    RewardList,
    RewardScore,
    RewardSpec,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
    ScoreSample,
)
from .messages.rollout import Completion, Prompt, RolloutGroup, RolloutInfo, RolloutRequest, RolloutResponse, Sampling
from .messages.trainer import TrainerInfo
from .messages.weights import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    Manifest,
    Rendezvous,
    RenewRequest,
    SessionRequest,
    TensorSpec,
    WeightState,
)

if TYPE_CHECKING:
    from .client.clients import RewardClient, RolloutClient, ServiceClient, WeightsClient

__version__ = "0.1.0"

__all__ = [
    "PROTOCOL_VERSION", "AbortRequest", "BeginRequest", "CloseRequest", "CommitRequest", "Completion",
    "ConflictError", "DataError", "ErrorBody", "ErrorDetail", "FatalError", "Health", "InfrastructureError",
    "Manifest", "Message", "Prompt", "Rendezvous", "RenewRequest", "Request", "Response", "RewardClient",
    "RewardDescription", "RewardInfo", "RewardList", "RewardScore", "RewardSpec", "RolloutClient", "RolloutGroup",
    "RolloutInfo", "RolloutRequest", "RolloutResponse", "Sampling", "ScoreRequest", "ScoreResponse", "ScoreResult",
    "ScoreSample", "ServiceClient", "ServiceError", "SessionRequest", "TensorSpec", "TrainerInfo", "WeightState",
    "WeightsClient", "error_class",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the clients on first use: a server needs the messages alone, and httpx takes long to import."""
    if name in ("RewardClient", "RolloutClient", "ServiceClient", "WeightsClient"):
        from .client import clients

        return getattr(clients, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
