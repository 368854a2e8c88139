"""The wire of grpo-services: what its three services say to each other, and typed clients that say it."""

from .base import PROTOCOL_VERSION, Message, Request, Response
from .clients import RewardClient, RolloutClient, ServiceClient, WeightsClient
from .errors import (
    ConflictError,
    DataError,
    ErrorBody,
    ErrorDetail,
    FatalError,
    InfrastructureError,
    ServiceError,
    error_class,
)
from .health import Health
from .reward import (
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
from .rollout import Completion, Prompt, RolloutGroup, RolloutInfo, RolloutRequest, RolloutResponse, Sampling
from .trainer import TrainerInfo
from .weights import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    Manifest,
    Rendezvous,
    SessionRequest,
    TensorSpec,
    WeightState,
)

__version__ = "0.1.0"

__all__ = [
    "PROTOCOL_VERSION", "AbortRequest", "BeginRequest", "CloseRequest", "CommitRequest", "Completion", "ConflictError",
    "DataError", "ErrorBody", "ErrorDetail", "FatalError", "Health", "InfrastructureError", "Manifest", "Message",
    "Prompt", "Rendezvous", "Request", "Response", "RewardClient", "RewardDescription", "RewardInfo", "RewardList",
    "RewardScore", "RewardSpec", "RolloutClient", "RolloutGroup", "RolloutInfo", "RolloutRequest", "RolloutResponse",
    "Sampling", "ScoreRequest", "ScoreResponse", "ScoreResult", "ScoreSample", "ServiceClient", "ServiceError",
    "SessionRequest", "TensorSpec", "TrainerInfo", "WeightState", "WeightsClient", "error_class",
]  # fmt: skip
