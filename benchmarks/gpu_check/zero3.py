"""ZeRO-3 over two GPUs, connected by NCCL, against one: each with rows of its own, and both with the same rows. In a
trial both ranks are on the CPU, over Gloo.

    python -m torch.distributed.run --standalone --nproc-per-node N -m benchmarks.gpu_check.zero3 FOLDER TINY TOGETHER

is the program of the ranks: updates of the policy in FOLDER. Rank 0 writes what they did to FOLDER/N-TOGETHER.pt.
"""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

from .check import Check, Figures, Needs, Place, check
from .made import relative_difference
from .policies import SMALL, TINY, made_update, new_engine, save_policy
from .runner import ROOT

UPDATES = 3
TIMEOUT_S = 240


@check(needs=Needs(gpus=2, memory_gib=8.0, packages=("deepspeed", "peft")), light=False)
def zero3_over_nccl(place: Place) -> Figures:
    """ZeRO-3 in float32 on two GPUs over NCCL, against one GPU: updates of the same sequences"""
    return _compared(place, together=1)


@check(needs=Needs(gpus=2, memory_gib=8.0, packages=("deepspeed", "peft")), light=False)
def rows_of_two_gpus(place: Place) -> Figures:
    """sequence_parallel_size 2, ZeRO-3 in float32 over NCCL, against one GPU: updates of the same sequences"""
    return _compared(place, together=2)


def _compared(place: Place, *, together: int) -> Figures:
    save_policy(place.folder / "policy", TINY if place.tiny else SMALL, place.device, torch.float32)
    alone, both = _updates_of(1, place, together=1), _updates_of(2, place, together=together)
    return {
        "loss, difference": float((both["losses"] - alone["losses"]).abs().max()),
        "gradient norm, relative difference": relative_difference(both["norms"], alone["norms"]),
        "logprobs, difference": float((both["logprobs"] - alone["logprobs"]).abs().max()),
        "logprobs, change by the updates": float((alone["logprobs"] - alone["before"]).abs().max()),
    }


def _updates_of(ranks: int, place: Place, *, together: int) -> dict[str, torch.Tensor]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    program = ["-m", "benchmarks.gpu_check.zero3", str(place.folder), str(int(place.tiny)), str(together)]
    subprocess.run([sys.executable, *launcher, *program], cwd=ROOT, stdout=sys.stderr, check=True)
    found: dict[str, torch.Tensor] = torch.load(place.folder / f"{ranks}-{together}.pt", weights_only=True)
    return found


def _rank(folder: Path, *, tiny: bool, together: int) -> None:
    from grpo_trainer.ranks.process_exit import end_process

    # Even a collective that waits inside a library ends then, and torchrun ends the other rank.
    signal.alarm(TIMEOUT_S)
    length = 16 if tiny else 256
    engine = new_engine(folder / "policy", dtype="float32", zero_stage=3, rate=1e-3, together=together)
    made = partial(
        made_update,
        engine,
        (TINY if tiny else SMALL).vocabulary,
        completions=8,
        length=length,
        tokens_per_micro_batch=2 * length,
    )
    # Compute the logprobs of all sequences on each rank: a rank's own part depends on the number of ranks.
    everything = made(for_each_rank=True)
    part = made() if together == 1 else everything
    before = torch.cat(engine.logprobs(everything))
    metrics = [engine.update(part) for _ in range(UPDATES)]
    logprobs = torch.cat(engine.logprobs(everything))
    if engine.rank == 0:
        found = {
            "losses": torch.tensor([of_update["loss"] for of_update in metrics]),
            "norms": torch.tensor([of_update["grad_norm"] for of_update in metrics]),
            "before": before.cpu(),
            "logprobs": logprobs.cpu(),
        }
        torch.save(found, folder / f"{engine.world_size}-{together}.pt")
    end_process(0)


CHECKS: list[Check] = [zero3_over_nccl, rows_of_two_gpus]

if __name__ == "__main__":
    _rank(Path(sys.argv[1]), tiny=sys.argv[2] == "1", together=int(sys.argv[3]))
