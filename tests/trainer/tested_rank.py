"""What every rank of a test does around its own work; `spawned_ranks` starts it."""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grpo_trainer.engine import training_engine
from grpo_trainer.ranks.process_exit import end_process

Scenario = Callable[[], dict[str, Any]]


@contextmanager
def this_rank() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the test's folder and what this rank is to fill with what it sees; then end the process.

    In a real process group. An error is seen, too, under `error`, and ends the process with status 1.
    """
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    # DeepSpeed collects garbage several times for each engine; what was imported need not be looked at again.
    gc.freeze()
    training_engine.join_process_group(timeout_s=60.0)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    seen: dict[str, Any] = {}
    try:
        yield folder, seen
    except Exception:
        seen["error"] = traceback.format_exc()
        raise
    finally:
        (folder / f"seen-{world_size}-{rank}.json").write_text(json.dumps(seen))
    end_process(0)


def run_scenarios(scenarios_of: Callable[[Path, int], Mapping[str, Scenario]]) -> None:
    """Run the scenarios of a folder and a number of ranks, one after another; what each returns is seen by its name."""
    with this_rank() as (folder, seen):
        for name, scenario in scenarios_of(folder, torch.distributed.get_world_size()).items():
            started_s = time.monotonic()
            seen[name] = scenario()
            print(f"{time.monotonic() - started_s:5.1f} s  {name}", flush=True)
