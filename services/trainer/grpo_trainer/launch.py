"""Several ranks on this machine: the trainer starts itself again under torchrun."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def needs_launch(nproc_per_node: int) -> bool:
    """True when several ranks are asked for and no launcher (torchrun, DeepSpeed, Kubernetes) has set them up."""
    return nproc_per_node > 1 and "RANK" not in os.environ


def relaunch(argv: Sequence[str], nproc_per_node: int) -> NoReturn:
    """Replace this process by torchrun, which ends all ranks when one dies."""
    # --standalone meets on a free port of this machine; several machines start torchrun themselves and set RANK.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={nproc_per_node}"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc_per_node)))
    os.execv(sys.executable, [*command, "-m", "grpo_trainer", *argv])  # noqa: S606 - our own interpreter
