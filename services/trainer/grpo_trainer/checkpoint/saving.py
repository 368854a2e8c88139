"""Writing checkpoints and the final model, with all ranks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..atomic_file import WRITE_ERRORS, write_folder_atomically
from ..config.run_config import RunConfig
from ..errors import RunError
from ..ranks.ranks import Ranks
from .files import (
    begin_checkpoint,
    describe_files,
    finish_checkpoint,
    list_files,
    remove_unfinished,
)


class SavedEngine(Protocol):
    """What is saved; the training engine is one."""

    def beat(self) -> None:
        """Called after each file."""

    def save(self, folder: Path) -> None: ...

    def whole_state(self) -> dict[str, Any]: ...

    def write_hf(self, folder: Path, state: dict[str, Any]) -> None: ...


def save_checkpoint(
    step: int, config: RunConfig, engine: SavedEngine, ranks: Ranks, state: dict[str, Any] | None
) -> None:
    """Save the run after `step`. All ranks call it; `state` is rank 0's.

    Raises RunError, on every rank, when it could not be written; the checkpoints before it are intact.
    """
    run_dir, keep = config.run_dir, config.checkpoint.save_total_limit
    hint = "free some space; the checkpoints before it are intact"
    on_all = partial(_on_all_ranks, ranks, what=f"the checkpoint of step {step}", hint=hint)

    def on_first(work: Callable[[], Any]) -> Any:
        return on_all(lambda: work() if ranks.is_first else None)[0]

    try:
        folder = Path(on_first(lambda: str(begin_checkpoint(run_dir, step))))
        on_all(lambda: engine.save(folder / "engine"))
        own = on_first(lambda: list_files(folder))[ranks.rank :: ranks.world_size]
        described = on_all(lambda: describe_files(folder, own, beat=engine.beat))
        files = {name: file for part in described for name, file in part.items()}
        on_first(lambda: str(finish_checkpoint(run_dir, step, state or {}, files, keep=keep)))
    except RunError:
        if ranks.is_first:
            remove_unfinished(run_dir)
        raise


def _on_all_ranks(ranks: Ranks, work: Callable[[], Any], *, what: str, hint: str) -> list[Any]:
    """What `work` gives on every rank. Raises RunError, on every rank, when `what` could not be written on one."""
    result, problem = None, ""
    try:
        result = work()
    except WRITE_ERRORS as error:
        problem = f"rank {ranks.rank}: {error}"[:1000]
    said = ranks.gather_json([result, problem])
    problems = [problem for _, problem in said if problem]
    if problems:
        raise RunError(f"{what} could not be written: {'; '.join(problems)}", hint=hint)
    return [result for result, _ in said]


def save_model(config: RunConfig, engine: SavedEngine, ranks: Ranks) -> None:
    """The policy as transformers and vLLM load it, into `model/`, which is whole or not there. All ranks call it.

    Raises RunError, on every rank, when it could not be written.
    """
    state = engine.whole_state()

    def write() -> None:
        if ranks.is_first:
            write_folder_atomically(config.run_dir / "model", lambda folder: engine.write_hf(folder, state))

    hint = "free some space and go on with --resume: the checkpoint of the last step is intact"
    _on_all_ranks(ranks, write, what="the final model", hint=hint)
