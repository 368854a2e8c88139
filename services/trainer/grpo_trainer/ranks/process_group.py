"""Joining the trainer's other ranks, before anything is loaded."""

import logging
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import UnavailableError, UsageError
from .launch import environment_world_size

log = logging.getLogger(__name__)

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def join_process_group(*, timeout_s: float) -> torch.device:
    """Join the process group that torchrun describes, or make one of a single rank. Returns this rank's device.

    NCCL where there is a GPU, Gloo elsewhere. A collective waits `timeout_s` for the other ranks. Does nothing but
    choosing the device when the group exists. Raises what `own_device` does.
    """
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            alone = ("0", "1", "0", "127.0.0.1", str(_free_port()))
            os.environ.update(zip(LAUNCHER_VARIABLES, alone, strict=True))
        tell_of_idle_gpus()
        backend = "nccl" if device.type == "cuda" else "gloo"
        # With a bound device every later group is split off by NCCL at once, which has failed for a single rank
        # (deepspeedai/DeepSpeed#8248); DeepSpeed itself binds none then.
        bound = device if backend == "nccl" and environment_world_size() > 1 else None
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), device_id=bound)
    return device


def own_device() -> torch.device:
    """This rank's GPU; the CPU where torch is built for it, or where CUDA_VISIBLE_DEVICES is empty.

    Raises UnavailableError where torch should see a GPU and does not: training would go on, a hundred times slower.
    Raises UsageError when this machine has more ranks than GPUs.
    """
    if not torch.cuda.is_available():
        if torch.version.cuda is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            raise UnavailableError(
                f"torch {torch.__version__} is built for CUDA {torch.version.cuda} and finds no GPU",
                hint="does nvidia-smi show one here, and is the driver new enough? For the CPU: CUDA_VISIBLE_DEVICES=",
            )
        return torch.device("cpu")
    rank, ranks, gpus = *_place(), torch.cuda.device_count()
    if ranks > gpus:
        raise UsageError(
            f"{ranks} ranks want a GPU each, and {gpus} can be seen here",
            hint="lower deepspeed.nproc_per_node, or let this machine or container see more of them",
        )
    return torch.device("cuda", rank)


def tell_of_idle_gpus() -> None:
    rank, ranks, gpus = *_place(), torch.cuda.device_count()
    if rank == 0 and ranks < gpus:
        log.warning("%d GPUs can be seen, and deepspeed.nproc_per_node uses %d: the others stay idle", gpus, ranks)


def _place() -> tuple[int, int]:
    """This rank's number on this machine, and how many there are here."""
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
