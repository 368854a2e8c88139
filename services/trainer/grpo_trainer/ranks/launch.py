"""Several ranks: the trainer starts itself again under torchrun, and ends as its first rank that fails.

`python -m grpo_trainer.launch` takes what `torchrun` takes, several machines included. torchrun itself ends with 1
whatever became of its ranks; here their exit status is kept, which says whether another try can help.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

STOP_LIMIT_S = 600
"""How long ranks that were told to stop may go on, unless whoever stopped them has less patience."""


def environment_rank() -> int:
    """This process's rank as its launcher says, before any process group exists."""
    return int(os.environ.get("RANK", "0"))


def environment_world_size() -> int:
    """How many ranks there are, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def needs_launch(nproc_per_node: int) -> bool:
    """True when several ranks are asked for and no launcher (torchrun, DeepSpeed, Kubernetes) has set them up."""
    return nproc_per_node > 1 and "RANK" not in os.environ


def relaunch(argv: Sequence[str], nproc_per_node: int) -> NoReturn:
    """Replace this process by torchrun, which ends all ranks when one dies."""
    # --standalone meets on a free port of this machine; several machines start torchrun themselves and set RANK.
    command = [sys.executable, "-m", "grpo_trainer.launch", "--standalone", f"--nproc_per_node={nproc_per_node}"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc_per_node)))
    os.execv(sys.executable, [*command, "-m", "grpo_trainer", *argv])  # noqa: S606 - our own interpreter


def main(argv: Sequence[str] | None = None) -> int:
    """torchrun. Returns 0, or the exit status of the rank that failed first, or 128 and the signal that stopped all."""
    # A rank that is told to stop ends its stage and saves; torchrun would kill it after half a minute.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOP_LIMIT_S))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(list(sys.argv[1:] if argv is None else argv))
    except SignalException as stop:
        print(f"stopped by signal {int(stop.sigval)}, as were the ranks", file=sys.stderr)
        return 128 + int(stop.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"exit status {failure.exitcode}" if failure.exitcode >= 0 else f"signal {-failure.exitcode}"
        print(f"error: rank {rank} ended with {how}, so all of them do", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    return 0
