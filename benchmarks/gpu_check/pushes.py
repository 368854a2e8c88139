"""Pushes of the real trainer to a real rollout server: on another GPU over NCCL, and over two tensor-parallel GPUs.

In a trial all are processes on the CPU, and the weights travel over Gloo.
"""

from .check import Check, Figures, Needs, Place, check
from .policies import made_update

NEEDS = Needs(gpus=2, memory_gib=16.0, packages=("deepspeed", "peft", "vllm", "grpo_rollout"))


@check(needs=NEEDS, timeout_s=1200.0, light=False)
def push_over_nccl(place: Place) -> Figures:
    """Pushes over NCCL to a rollout server on a second GPU; a trainer that is killed between two of them"""
    return _pushed_twice(place, killed_between=True)


@check(needs=NEEDS, timeout_s=1200.0, light=False)
def tensor_parallelism_2(place: Place) -> Figures:
    """Pushes to a rollout server over two GPUs, tensor-parallel"""
    return _pushed_twice(place, "--tensor-parallel-size=2")


def _pushed_twice(place: Place, *flags: str, killed_between: bool = False) -> Figures:
    """Push a policy, update it, and push it again; `killed_between`: meanwhile another trainer's push is cut off."""
    # Import here what the trainer's checks do without: the servers' libraries.
    from .served import (
        VOCABULARY,
        PushingTrainer,
        new_trainer_engine,
        rollout_server,
        s_until_stale,
        save_served,
        visible_gpus,
        wait_until_live,
    )

    policy = save_served(place.folder / "policy", place)
    served = save_served(place.folder / "served", place, seed=1)
    gpus = visible_gpus()
    figures: dict[str, float | None] = {}
    with rollout_server(served, place, *flags, gpus=gpus[-2:] if flags else gpus[1:2]) as server:
        wait_until_live(server)
        # Only now: vLLM measures the memory of a GPU that they share.
        engine = new_trainer_engine(policy)
        with PushingTrainer(engine, server.url) as trainer:
            trainer.push(1)
            figures["workers"] = trainer.workers
            figures["over NCCL"] = float(trainer.backend == "nccl")
            probes = trainer.canary(1)
            figures["canary, mean difference"] = trainer.difference(probes)
            engine.update(made_update(engine, VOCABULARY, completions=8, length=16, tokens_per_micro_batch=64))
            figures["canary, without the next push"] = trainer.difference(probes)
        if killed_between:
            figures["s until the killed trainer is noticed"] = s_until_stale(server.url, served)
        with PushingTrainer(engine, server.url) as trainer:
            trainer.push(2)
            figures["canary, after the next push"] = trainer.difference(trainer.canary(2))
    return figures


CHECKS: list[Check] = [push_over_nccl, tensor_parallelism_2]
