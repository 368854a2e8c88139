"""A member of a push is lost, killed or frozen, in the middle of tensors of more than 64 MiB, with the default limits.

A killed process closes its connections, a frozen one does not: its peers know it by its silence alone. On one GPU the
trainer and the servers share it, and the weights travel over Gloo; with a GPU for each of them over NCCL. In a trial
all are processes on the CPU.
"""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from .check import Check, Figures, Needs, Place, check
from .policies import Shape

if TYPE_CHECKING:
    from tests.processes import Service

    from .served import PushingTrainer

LARGE = Shape(hidden=512, intermediate=73_728, layers=4, heads=8, kv_heads=2, vocabulary=128)
"""Three matrices of 72 MiB in each layer, in bf16. One layer in a trial."""
BETWEEN_PUSHES_S, LAST_UNTIL_BACK = 2.0, 10
"""The version of the push that has to have a server back that was frozen: it returns after 1, 2, 4 … pushes."""
SECONDS, MEMBERS = "s of the push", "servers that have it"
PACKAGES = ("deepspeed", "vllm", "grpo_rollout")


def _needs(gpus: int) -> Needs:
    return Needs(gpus=gpus, memory_gib=24.0, packages=PACKAGES)


@check(needs=_needs(1), timeout_s=900.0, light=False)
def trainer_lost_in_a_push(place: Place) -> Figures:
    """A trainer that is killed, and one that freezes, in a push of large tensors over Gloo"""
    return _trainer_lost(place, apart=False)


@check(needs=_needs(2), timeout_s=900.0, light=False)
def trainer_lost_over_nccl(place: Place) -> Figures:
    """A trainer that is killed, and one that freezes, in a push of large tensors over NCCL"""
    return _trainer_lost(place, apart=True)


@check(needs=_needs(1), timeout_s=900.0, light=False)
def server_lost_in_a_push(place: Place) -> Figures:
    """One of two servers that freezes, comes back and is killed, in pushes of large tensors over Gloo"""
    return _server_lost(place, apart=False)


@check(needs=_needs(3), timeout_s=900.0, light=False)
def server_lost_over_nccl(place: Place) -> Figures:
    """One of two servers that freezes, comes back and is killed, in pushes of large tensors over NCCL"""
    return _server_lost(place, apart=True)


def _shape(place: Place) -> Shape:
    return replace(LARGE, layers=1) if place.tiny else LARGE


def _trainer_lost(place: Place, *, apart: bool) -> Figures:
    # Import here what the trainer's checks do without: the servers' libraries.
    from .served import DEFAULT_LIMITS, PushingTrainer, new_trainer_engine, s_until_stale, save_served

    policy = save_served(place.folder / "policy", place, shape=_shape(place))
    figures: dict[str, float | None] = {}
    with _servers(place, 1, apart=apart) as [server]:
        for what, by in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
            seconds = s_until_stale(server.url, policy, by=by, limits="default")
            figures[f"{what}, s until the server is stale"] = seconds
        engine = new_trainer_engine(policy)
        with PushingTrainer(engine, server.url, config=DEFAULT_LIMITS) as trainer:
            figures |= _pushed(trainer, 1)
            figures["canary, after the next push"] = trainer.difference(trainer.canary(1))
    return figures


def _server_lost(place: Place, *, apart: bool) -> Figures:
    from .served import DEFAULT_LIMITS, PushingTrainer, call_in_a_push, new_trainer_engine, save_served

    policy = save_served(place.folder / "policy", place, shape=_shape(place))
    figures: dict[str, float | None] = {}
    with _servers(place, 2, apart=apart) as [server, other]:
        engine = new_trainer_engine(policy)
        with PushingTrainer(engine, server.url, other.url, config=DEFAULT_LIMITS) as trainer:
            figures |= _pushed(trainer, 1)
            call_in_a_push(engine, lambda: _send(other, signal.SIGSTOP))
            try:
                frozen = _pushed(trainer, 2)
            finally:
                _send(other, signal.SIGCONT)
            version, awake = 2, 0.0
            while awake < 2 and version < LAST_UNTIL_BACK:
                time.sleep(BETWEEN_PUSHES_S)
                trainer.look()
                awake = _pushed(trainer, version := version + 1)[MEMBERS]
            call_in_a_push(engine, lambda: _send(other, signal.SIGKILL))
            killed = _pushed(trainer, version := version + 1)
            figures["canary, mean difference"] = trainer.difference(trainer.canary(version))
    figures |= {f"frozen, {name}": frozen[name] for name in (SECONDS, MEMBERS)}
    figures |= {f"killed, {name}": killed[name] for name in (SECONDS, MEMBERS)}
    return figures | {f"awake, {MEMBERS}": awake}


@contextmanager
def _servers(place: Place, count: int, *, apart: bool) -> "Iterator[list[Service]]":
    """Rollout servers of large policies: each on a GPU of its own, or all on the trainer's."""
    from .served import rollout_server, save_served, visible_gpus, wait_until_live

    served = save_served(place.folder / "served", place, seed=1, shape=_shape(place))
    gpus = visible_gpus()
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            own = gpus[number + 1 : number + 2] if apart else gpus[:1]
            servers.append(stack.enter_context(rollout_server(served, place, gpus=own)))
            # One after another: vLLM measures the memory of a GPU that they share.
            wait_until_live(servers[-1])
        yield servers


def _pushed(trainer: "PushingTrainer", version: int) -> dict[str, float]:
    seconds = trainer.push(version).seconds
    largest = max(math.prod(shape) for _, _, shape in trainer.engine.export.listed())
    return {
        "largest tensor, MiB": 2 * largest / 2**20,
        "over NCCL": float(trainer.backend == "nccl"),
        SECONDS: seconds,
        MEMBERS: float(trainer.num_members),
    }


def _send(server: "Service", number: signal.Signals) -> None:
    """To its front, its engine and its workers."""
    for pid in (server.process.pid, *(child.pid for child in server.children())):
        os.kill(pid, number)


CHECKS: list[Check] = [trainer_lost_in_a_push, server_lost_in_a_push, trainer_lost_over_nccl, server_lost_over_nccl]
