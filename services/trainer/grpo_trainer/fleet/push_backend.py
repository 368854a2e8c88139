"""Over what weights travel: NCCL where it can work, Gloo elsewhere."""

import logging

from grpo_proto.messages.weights import Backend

from ..config.weights import WeightsConfig
from ..errors import UsageError
from .fleet import Replica

log = logging.getLogger(__name__)


def choose_backend(config: WeightsConfig, members: list[Replica], *, gpu: str | None, nccl: str | None) -> Backend:
    """Choose NCCL where it can work, Gloo elsewhere. `gpu` and `nccl` are this process's own, as in `RolloutInfo`. A
    dry run may know no members.

    Raises UsageError when the configuration requires NCCL where it cannot work.
    """
    if config.backend == "gloo":
        return "gloo"
    obstacle = (
        "this trainer has no GPU"
        if gpu is None or nccl is None
        else next(filter(None, (_no_nccl(gpu, nccl, member) for member in members)), None)
    )
    if obstacle is None:
        return "nccl"
    if config.backend == "nccl":
        raise UsageError(f"weights.backend is nccl, but {obstacle}", hint="remove the setting, or set it to gloo")
    if gpu is not None:
        log.warning("weights travel over gloo, through CPU memory: %s", obstacle)
    return "gloo"


def _no_nccl(gpu: str, nccl: str, member: Replica) -> str | None:
    """Why this process and `member` cannot connect over NCCL; None when no obstacle is known."""
    info = member.info
    if info is None or info.device != "cuda":
        return f"{member.url} has no GPU"
    if gpu in info.gpus:
        return f"{member.url} uses the same GPU; NCCL needs a separate GPU for each member"
    if info.nccl_version not in (None, nccl):
        return f"{member.url} has NCCL {info.nccl_version}, this trainer {nccl}: the two versions refuse each other"
    return None
