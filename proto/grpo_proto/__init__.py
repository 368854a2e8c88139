"""The wire of grpo-services: what its three services say to each other, and typed clients that say it."""

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
    """The clients when somebody asks for one: a server needs the messages alone, and httpx takes long to import."""
    if name in ("RewardClient", "RolloutClient", "ServiceClient", "WeightsClient"):
        from .client import clients

        return getattr(clients, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
