"""Join the process group of the trainer's ranks, before anything is loaded."""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ..config.optimization import DeepSpeedConfig
from ..errors import UnavailableError, UsageError
from .launch import VARIABLES, environment_world_size

log = logging.getLogger(__name__)


def join_process_group(*, timeout_s: float) -> torch.device:
    """Join the process group that torchrun describes, or make a group of a single rank. Returns this rank's device.

    Uses NCCL where there is a GPU, Gloo elsewhere. `timeout_s` is the timeout of its collectives. Only chooses the
    device when the group exists. Raises what `own_device` raises.
    """
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        alone = environment_world_size() == 1
        if alone:
            # DeepSpeed reads them; nothing listens on a port 0.
            os.environ.update(zip(VARIABLES, ("0", "1", "0", "127.0.0.1", "0"), strict=True))
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if device.type == "cuda" else "gloo"
        # Bind no device for a single rank, as DeepSpeed does: with a bound device NCCL splits off every later group at
        # once, which has failed for a single rank (deepspeedai/DeepSpeed#8248).
        bound = device if backend == "nccl" and environment_world_size() > 1 else None
        timeout = timedelta(seconds=timeout_s)
        if alone:
            dist.init_process_group(
                backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout, device_id=bound
            )
        else:
            dist.init_process_group(backend, timeout=timeout, device_id=bound)
    return device


def own_device() -> torch.device:
    """Return this rank's GPU; the CPU where torch is built for it, or where CUDA_VISIBLE_DEVICES is empty.

    Raises UnavailableError where torch should find a GPU and does not: training on the CPU is a hundred times slower.
    Raises UsageError when this machine has more ranks than GPUs.
    """
    if not torch.cuda.is_available():
        if torch.version.cuda is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            raise UnavailableError(
                f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and finds no GPU",
                hint="check nvidia-smi and the driver's version; to train on the CPU set CUDA_VISIBLE_DEVICES= (empty)",
            )
        return torch.device("cpu")
    rank, ranks, gpus = int(os.environ.get("LOCAL_RANK", "0")), ranks_here() or 1, torch.cuda.device_count()
    if ranks > gpus:
        raise UsageError(
            f"{ranks} ranks need a GPU each, but {gpus} are visible here",
            hint="lower deepspeed.nproc_per_node, or make more GPUs visible to this machine or container",
        )
    return torch.device("cuda", rank)


def tell_of_ranks(config: DeepSpeedConfig, device: torch.device) -> None:
    """Log how many ranks train and on what, and what of this machine they leave unused; on rank 0."""
    here, gpus, total = ranks_here(), torch.cuda.device_count(), environment_world_size()
    shown = f", {here} of them on this machine" if here is not None and here != total else ""
    ranks = "1 rank trains" if total == 1 else f"{total} ranks train"
    log.info("%s%s, on %s; ZeRO stage %d", ranks, shown, device.type, config.zero_stage)
    if here is None:
        return
    if config.nproc_per_node not in (1, here):
        log.warning(
            "deepspeed.nproc_per_node is %d, and the launcher has started %d ranks here: that holds",
            config.nproc_per_node,
            here,
        )
    if device.type == "cuda" and here < gpus:
        log.warning("%d GPUs are visible, and %d ranks train here: the others stay idle", gpus, here)


def ranks_here() -> int | None:
    """Return the number of ranks on this machine; None where the launcher does not say it."""
    if environment_world_size() == 1:
        return 1
    named = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")  # DeepSpeed's launcher
    return int(named) if named and named.isdecimal() else None
