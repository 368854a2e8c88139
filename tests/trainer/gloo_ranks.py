"""Two processes in a Gloo group that run one program."""

from pathlib import Path

from tests.warm_python import warm_python

MEET = """
import os
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{rendezvous}", rank=int(os.environ["RANK"]), world_size=2)
"""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_ADDR2LINE": "1"}


def meeting_program(program: str, folder: Path) -> str:
    """The text of `program` after what makes it one of two ranks, by its variable RANK, that meet in `folder`."""
    return MEET.format(rendezvous=folder / "rendezvous") + program


def outputs_of_two_ranks(program: str, folder: Path) -> list[str]:
    """What each rank of `program` prints, which finds the group initialised. Both have to end with status 0."""
    return outcomes_of_two_ranks(program, folder, [0, 0])[0]


def outcomes_of_two_ranks(program: str, folder: Path, statuses: list[int]) -> tuple[list[str], list[str]]:
    """What each rank of `program` prints, and what it logs. They have to end with `statuses`."""
    file = folder / "program.py"
    file.write_text(meeting_program(program, folder))
    outputs, errors = ([folder / f"{name}-{rank}" for rank in range(2)] for name in ("output", "errors"))
    ranks = [
        warm_python(file, output=outputs[rank], errors=errors[rank], environment=ENVIRONMENT | {"RANK": str(rank)})
        for rank in range(2)
    ]
    logs = [error.read_text() for error in errors] if [process.wait(120.0) for process in ranks] == statuses else None
    assert logs is not None, [error.read_text() for error in errors]
    return [output.read_text() for output in outputs], logs
