"""Start the ranks of several machines by torchrun, and exit with the status of the first rank that fails.

`python -m grpo_trainer.launch` takes the arguments of `torchrun`. torchrun itself exits with 1 whatever the status of
its ranks; the launcher keeps their status, which shows whether a retry can help. `one_machine.py` starts the ranks of a
single machine.
"""

import os
import sys
from collections.abc import Sequence

from ..errors import UsageError

STOP_LIMIT_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
STOP_LIMIT_S = 600
"""How long ranks may run after a stop signal, unless the sender kills them earlier."""


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment_rank() -> int:
    """Return this process's rank from its launcher's environment, before any process group exists."""
    return int(os.environ["RANK"]) if environment_world_size() > 1 else 0


def environment_world_size() -> int:
    """Return the number of ranks from the launcher's environment; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def needs_launch(nproc_per_node: int) -> bool:
    """Whether several ranks are configured and no launcher (torchrun, DeepSpeed, Kubernetes) has started them."""
    # torchrun's own store waits for the ranks that it has started, and for no others.
    return nproc_per_node > 1 and environment_world_size() == 1 and "TORCHELASTIC_RUN_ID" not in os.environ


def check_environment() -> None:
    """Raises UsageError where a launcher has started several ranks, and has not told this one all that it needs."""
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    wrong = [f"{name} is {given[name]!r}" for name in numbers if name in given and not given[name].isdecimal()]
    if not wrong and (environment_world_size() > 1 or ("WORLD_SIZE" not in given and given.get("RANK", "0") != "0")):
        wrong = [f"{name} is not set" for name in VARIABLES if name not in given]
    if wrong and "RANK" in given:
        raise UsageError(
            f"RANK is set, as by a launcher of several ranks, but {', '.join(wrong)}",
            hint="start one `python -m grpo_trainer.launch` on each machine; or set all five, with srun: "
            "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=… MASTER_PORT=…",
        )


def stop_limit_s() -> float:
    """How long ranks may run after a stop signal: what torchrun reads from its variable, or `STOP_LIMIT_S`."""
    return float(os.environ.get(STOP_LIMIT_VARIABLE, STOP_LIMIT_S))


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun. Returns 0, the exit status of the rank that failed first, or 128 + the signal that stopped all."""
    # A rank ends its stage and saves after a stop signal; torchrun would kill it after half a minute.
    os.environ.setdefault(STOP_LIMIT_VARIABLE, str(STOP_LIMIT_S))
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
