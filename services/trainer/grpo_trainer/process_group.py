"""Joining the trainer's other ranks, before anything is loaded."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def join_process_group(*, timeout_s: float) -> torch.device:
    """Join the process group that torchrun describes, or make one of a single rank. Returns this rank's device.

    NCCL where there is a GPU, Gloo elsewhere. A collective waits `timeout_s` for the other ranks. Does nothing but
    choosing the device when the group exists.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            alone = ("0", "1", "0", "127.0.0.1", str(_free_port()))
            os.environ.update(zip(LAUNCHER_VARIABLES, alone, strict=True))
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, timeout=timedelta(seconds=timeout_s), device_id=device if backend == "nccl" else None
        )
    return device


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
