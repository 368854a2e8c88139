"""Start several ranks: replace the trainer by torchrun, and exit with the status of the first rank that fails.

`python -m grpo_trainer.launch` takes the arguments of `torchrun`, for several machines as well. torchrun itself exits
with 1 whatever the status of its ranks; the launcher keeps their status, which shows whether a retry can help.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

STOP_LIMIT_S = 600
"""How long ranks may run after a stop signal, unless the sender kills them earlier."""


def environment_rank() -> int:
    """Return this process's rank from its launcher's environment, before any process group exists."""
    return int(os.environ.get("RANK", "0"))


def environment_world_size() -> int:
    """Return the number of ranks from the launcher's environment; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def needs_launch(nproc_per_node: int) -> bool:
    """Whether several ranks are configured and no launcher (torchrun, DeepSpeed, Kubernetes) has started them."""
    return nproc_per_node > 1 and "RANK" not in os.environ


def relaunch(argv: Sequence[str], nproc_per_node: int) -> NoReturn:
    """Replace this process by torchrun, which ends all ranks when any rank dies."""
    # --standalone: rendezvous on a free port of this machine. On several machines the user starts torchrun.
    command = [sys.executable, "-m", "grpo_trainer.launch", "--standalone", f"--nproc_per_node={nproc_per_node}"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc_per_node)))
    os.execv(sys.executable, [*command, "-m", "grpo_trainer", *argv])  # noqa: S606 - our own interpreter


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun. Returns 0, the exit status of the rank that failed first, or 128 + the signal that stopped all."""
    # A rank ends its stage and saves after a stop signal; torchrun would kill it after half a minute.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(STOP_LIMIT_S))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(list(sys.argv[1:] if argv is None else argv))
    except SignalException as stop:
        print(f"stopped by signal {int(stop.sigval)}, with all ranks", file=sys.stderr)
        return 128 + int(stop.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"exit status {failure.exitcode}" if failure.exitcode >= 0 else f"signal {-failure.exitcode}"
        print(f"error: rank {rank} ended with {how}; torchrun ended all ranks", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    return 0
