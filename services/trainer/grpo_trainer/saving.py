"""Writing checkpoints and the final model, with all ranks."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .checkpoint import (
    begin_checkpoint,
    describe_files,
    finish_checkpoint,
    list_files,
    list_steps,
    write_atomically,
)
from .config import RunConfig
from .engine import TrainingEngine
from .errors import RunError
from .pipeline import Cursor
from .ranks import Ranks


def save_checkpoint(
    step: int, config: RunConfig, engine: TrainingEngine, ranks: Ranks, state: dict[str, Any] | None
) -> None:
    """Save the run after `step`. All ranks call it; `state` is rank 0's. A step that is saved is not saved again.

    Raises RunError, on every rank, when it could not be written; the checkpoints before it are intact.
    """
    run_dir = config.run_dir
    if ranks.broadcast_json(step in list_steps(run_dir)):
        return
    folder = Path(ranks.broadcast_json(str(begin_checkpoint(run_dir, step)) if ranks.is_first else None))
    _on_all_ranks(step, ranks, lambda: engine.save(folder / "engine"))
    names = ranks.broadcast_json(list_files(folder) if ranks.is_first else None)
    own = names[ranks.rank :: ranks.world_size]
    described = _on_all_ranks(step, ranks, lambda: describe_files(folder, own))
    if ranks.is_first and state is not None:
        files = {name: file for part in described for name, file in part.items()}
        finish_checkpoint(run_dir, step, state, files, keep=config.checkpoint.save_total_limit)
    ranks.barrier()


def _on_all_ranks(step: int, ranks: Ranks, work: Callable[[], Any]) -> list[Any]:
    """What `work` gives on every rank. Raises RunError, on every rank, when it fails on one."""
    result, problem = None, ""
    try:
        result = work()
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        problem = f"rank {ranks.rank}: {error}"[:1000]
    said = ranks.gather_json([result, problem])
    problems = [problem for _, problem in said if problem]
    if problems:
        raise RunError(
            f"the checkpoint of step {step} could not be written: {'; '.join(problems)}",
            hint="free some space; the checkpoints before it are intact",
        )
    return [result for result, _ in said]


def save_model(config: RunConfig, engine: TrainingEngine, ranks: Ranks) -> None:
    """The policy as transformers and vLLM load it, into `model/`. All ranks call it."""
    if ranks.world_size == 1:
        write_atomically(config.run_dir / "model", engine.save_hf)
    else:
        engine.save_hf(config.run_dir / "model")
    ranks.barrier()


def checkpoint_state(step: int, cursor: Cursor, totals: dict[str, Any]) -> dict[str, Any]:
    return {"step": step, "cursor": asdict(cursor), "totals": totals}
