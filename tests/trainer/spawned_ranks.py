"""The ranks of a test, each in a process of its own: see `tested_rank` for what they do."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.processes import free_port
from tests.warm_python import warm_python

MARKS = [
    pytest.mark.deepspeed,
    pytest.mark.timeout(600),
    # Third-party: DeepSpeed compiles with torch's old names, imported with the engine's modules.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""Of the modules whose tests start ranks."""


def run_ranks(worker: str, folder: Path, world_size: int) -> list[dict[str, Any]]:
    """What each rank of the program `worker` saw; all have to end with status 0."""
    port = str(free_port())
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size), "CUDA_VISIBLE_DEVICES": ""}
    logs = [folder / f"log-{world_size}-{rank}" for rank in range(world_size)]
    program = Path(__file__).with_name(worker)
    ranks = [
        warm_python(program, folder, output=log, environment=meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank, log in enumerate(logs)
    ]
    try:
        ends = [process.wait(500.0) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert ends == [0] * world_size, "\n".join(log.read_text()[-4000:] for log in logs)
    return [json.loads((folder / f"seen-{world_size}-{rank}.json").read_text()) for rank in range(world_size)]
