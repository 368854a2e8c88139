"""Write checkpoints and the final model, with all ranks."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..atomic_file import WRITE_ERRORS, write_folder_atomically
from ..config.run_config import RunConfig
from ..errors import RunError
from ..ranks.crew import Crew
from .files import begin_checkpoint, finish_checkpoint, list_files, remove_unfinished


def save_checkpoint(
    step: int, config: RunConfig, crew: Crew, state: dict[str, Any], *, spared: Collection[int] = ()
) -> None:
    """Save the run after `step`, with rank 0's `state`. Older checkpoints go, but not those of the steps in `spared`.

    Raises RunError when the checkpoint could not be written; earlier checkpoints are intact.
    """
    run_dir, keep = config.run_dir, config.checkpoint.save_total_limit
    try:
        with _named(f"the checkpoint of step {step}", hint="free some space; the earlier checkpoints are intact"):
            with _own_writing():
                folder = begin_checkpoint(run_dir, step)
            crew.do("save_engine", str(folder / "engine"))
            with _own_writing():
                names = list_files(folder)
            described = crew.gather("describe", str(folder), names)
            files = {name: file for part in described for name, file in part.items()}
            with _own_writing():
                finish_checkpoint(run_dir, step, state, files, keep=keep, spared=spared)
    except RunError:
        remove_unfinished(run_dir)
        raise


def save_model(
    config: RunConfig, crew: Crew, write_hf: Callable[[Path, dict[str, Any]], None], *, folder: str = "model"
) -> None:
    """Write the policy for transformers and vLLM into `folder`, complete or not at all; with an adapter, their sum.

    Raises RunError when the model could not be written.
    """
    _save_final(config.run_dir / folder, crew.do("gather_state"), write_hf)


def save_adapter(config: RunConfig, crew: Crew, write_adapter: Callable[[Path, dict[str, Any]], None]) -> None:
    """Write the adapter for PEFT and vLLM into `model/`, complete or not at all. Raises RunError."""
    _save_final(config.run_dir / "model", crew.do("gather_adapter"), write_adapter)


def _save_final(folder: Path, state: dict[str, Any], write: Callable[[Path, dict[str, Any]], None]) -> None:
    hint = "free some space, then use --resume: the checkpoint of the last step is intact"
    with _named("the final model", hint=hint), _own_writing():
        write_folder_atomically(folder, lambda part: write(part, state))


@contextmanager
def writing() -> Iterator[None]:
    """Turn write errors, as on a full disk, into a RunError, which a rank sends to rank 0 as its answer."""
    try:
        yield
    except WRITE_ERRORS as error:
        raise RunError(str(error)[:1000]) from error


@contextmanager
def _own_writing() -> Iterator[None]:
    """Name rank 0 in the error of its own writing, as `Crew` names the other ranks."""
    try:
        with writing():
            yield
    except RunError as error:
        raise RunError(f"rank 0: {error.message}") from error


@contextmanager
def _named(what: str, *, hint: str) -> Iterator[None]:
    try:
        yield
    except RunError as error:
        raise RunError(f"{what} could not be written: {error.message}", hint=hint) from error
