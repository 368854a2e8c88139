"""What needs two GPUs and no vLLM: the transfer of a push, its digest, and a member that is lost half-way.

In a trial both sides are processes on the CPU, over Gloo.
"""

import subprocess
import sys
import time

import torch

from grpo_proto.lifeline import Host
from grpo_proto.messages.weights import Backend
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import Digest, WeightGroup

from .check import Check, Figures, Needs, Place, check
from .runner import ROOT

TIMEOUT_S = 60.0
BUCKET_BYTES, BUCKETS = 64 * 2**20, 16
LOST_TIMEOUT_S = 5.0


RECEIVER = """
import os, signal, sys, torch
from grpo_proto.lifeline import Member
from grpo_proto.transport import Digest, WeightGroup
port, secret, backend, count, size, dies = *sys.argv[1:4], *map(int, sys.argv[4:7])
device = "cpu" if backend == "gloo" else "cuda:1"
if backend == "nccl":
    torch.cuda.set_device(1)
member = Member("127.0.0.1", int(port), session=1, rank=1, secret=secret, timeout_s=60.0, silence_s=5.0)
group = WeightGroup(member, rank=1, world_size=2, backend=backend, timeout_s=60.0)
digest, bucket = Digest(size, device), torch.zeros(size, dtype=torch.uint8, device=device)
for number in range(count):
    if dies and number == count // 2:
        os.kill(os.getpid(), signal.SIGKILL)
    group.broadcast(bucket, timeout_s=60.0)
    digest.add(bucket)
print(digest.hexdigest())
"""


@check(needs=Needs(gpus=2, memory_gib=2.0), light=False)
def transfer_of_a_push(place: Place) -> Figures:
    """A push's transfer of 1 GiB to a second GPU with its digest; then a receiver that is killed half-way"""
    count, size = (4, 2**16) if place.tiny else (BUCKETS, BUCKET_BYTES)
    backend: Backend = "nccl" if place.device.type == "cuda" else "gloo"
    seconds, ours, theirs = _send(place.device, backend, count, size, dies=False)
    noticed_s = _s_until_noticed(place.device, backend, count, size)
    return {
        "GiB/s": count * size / 2**30 / seconds,
        "digests that differ": float(ours != theirs),
        "s until the lost member is noticed": noticed_s,
    }


def _receiver(
    port: int, secret: str, backend: Backend, count: int, size: int, *, dies: bool
) -> "subprocess.Popen[str]":
    numbers = [str(number) for number in (count, size, int(dies))]
    command = [sys.executable, "-c", RECEIVER, str(port), secret, backend, *numbers]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _send(device: torch.device, backend: Backend, count: int, size: int, *, dies: bool) -> tuple[float, str, str]:
    """Send `count` buckets. Returns the time in s, this side's digest and the receiver's."""
    host = Host(listening_socket("127.0.0.1", 0), silence_s=5.0)
    crew = host.crew(1, 2)
    with _receiver(host.port, crew.secret, backend, count, size, dies=dies) as receiver:
        try:
            group = WeightGroup(crew, rank=0, world_size=2, backend=backend, timeout_s=TIMEOUT_S)
            digest, timeout_s = Digest(size, device), LOST_TIMEOUT_S if dies else TIMEOUT_S
            buckets = [torch.randint(0, 256, (size,), dtype=torch.uint8, device=device) for _ in range(2)]
            started = time.perf_counter()
            for number in range(count):
                group.broadcast(buckets[number % 2], timeout_s=timeout_s)
                digest.add(buckets[number % 2])
            ours = digest.hexdigest()
            return time.perf_counter() - started, ours, receiver.communicate(timeout=TIMEOUT_S)[0].strip()
        finally:
            receiver.kill()
            host.close()


def _s_until_noticed(device: torch.device, backend: Backend, count: int, size: int) -> float | None:
    """Return the time in s until the sender raised, connecting included; None when it sent everything to nobody."""
    started = time.perf_counter()
    try:
        _send(device, backend, count, size, dies=True)
    except RuntimeError:
        return time.perf_counter() - started
    return None


CHECKS: list[Check] = [transfer_of_a_push]
