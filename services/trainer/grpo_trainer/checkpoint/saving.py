"""Write checkpoints and the final model, with all ranks."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..atomic_file import WRITE_ERRORS, rehearse_folder, write_folder_atomically
from ..config.run_config import RunConfig
from ..errors import RunError
from ..ranks.crew import Crew
from .files import (
    begin_checkpoint,
    describe_files,
    finish_checkpoint,
    list_files,
    remove_unfinished,
    temporary_folder,
)
from .space import require_space_for_checkpoint


@dataclass(frozen=True)
class Pending:
    """A checkpoint that has been begun: rank 0's state, and the steps whose checkpoints stay."""

    step: int
    state: dict[str, Any]
    spared: Collection[int]


class CheckpointSaver:
    """Saves the run, with all ranks: at once or, with `checkpoint.async_save`, while training goes on.

    One checkpoint is written at a time. It is there once it is whole: at the end of `save`, or of a later `complete`.
    """

    def __init__(self, config: RunConfig, crew: Crew, *, num_bytes: int):
        """`num_bytes`: size of a checkpoint, until there is one."""
        self._run_dir, self._settings, self._crew = config.run_dir, config.checkpoint, crew
        self._num_bytes = num_bytes
        self._pending: Pending | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint has been begun that is not complete."""
        return self._pending is not None

    def save(self, step: int, state: dict[str, Any], *, spared: Collection[int] = ()) -> None:
        """Save the run after `step`, with rank 0's `state`. Older checkpoints go, but not those of steps in `spared`.

        Waits for a checkpoint that is still being written. Raises RunError when one of the two could not be written, or
        has no room; earlier checkpoints are intact.
        """
        self.complete()
        self._pending = Pending(step, state, spared)
        with self._reported(step):
            with _own_writing():
                folder = begin_checkpoint(self._run_dir, step)
                require_space_for_checkpoint(self._run_dir, self._num_bytes)
            self._crew.do("save_engine", str(folder), self._settings.async_save)
        if not self._settings.async_save:
            self.complete()

    def complete(self, *, wait: bool = True) -> None:
        """Complete the checkpoint that has been begun, if there is one; without `wait` if all ranks have written it.

        Raises RunError when it could not be written.
        """
        pending = self._pending
        if pending is None:
            return
        with self._reported(pending.step):
            described = self._crew.gather("written", wait)
            if None in described:
                return
            with _own_writing():
                folder = temporary_folder(self._run_dir, pending.step)
                files = {name: file for of_rank in described for name, file in of_rank.items()}
                files |= describe_files(folder, [name for name in list_files(folder) if name not in files])
                keep = self._settings.save_total_limit
                finish_checkpoint(self._run_dir, pending.step, pending.state, files, keep=keep, spared=pending.spared)
        self._pending = None

    @contextmanager
    def _reported(self, step: int) -> Iterator[None]:
        """Name the checkpoint in the error of its writing, and leave nothing of it."""
        hint = "free some space; the earlier checkpoints are intact"
        try:
            with _named(f"the checkpoint of step {step}", hint=hint):
                yield
        except RunError:
            self._pending = None
            remove_unfinished(self._run_dir)
            raise


class WritesModels(Protocol):
    """An engine, as the final model needs it. Without tensors its methods write all the other files."""

    def write_hf(self, folder: Path, state: dict[str, Any]) -> None: ...
    def write_adapter(self, folder: Path, state: dict[str, Any]) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def num_adapter_bytes(self) -> int: ...


@dataclass(frozen=True)
class FinalFolder:
    """A folder that a finished run leaves, for transformers, PEFT and vLLM: complete, or not there at all.

    The command `gather` brings its tensors, of `num_bytes`, to rank 0, where `write` writes them with all small files.
    """

    path: Path
    gather: str
    write: Callable[[Path, dict[str, Any]], None]
    num_bytes: int

    def rehearse(self) -> None:
        """Write the small files alone, and remove them. Rank 0 only. Raises UsageError and UnavailableError."""
        rehearse_folder(self.path, lambda part: self.write(part, {}), num_bytes=self.num_bytes)

    def save(self, crew: Crew) -> None:
        """Raises RunError when the folder could not be written."""
        state = crew.do(self.gather)
        hint = "free some space, then use --resume: the checkpoint of the last step is intact"
        with _named("the final model", hint=hint), _own_writing():
            write_folder_atomically(self.path, lambda part: self.write(part, state))


def final_folders(config: RunConfig, engine: WritesModels) -> list[FinalFolder]:
    """`model/`: the policy, or its adapter; then the sum of model and adapter is `model-merged/`, if it is wanted."""
    whole = ("gather_state", engine.write_hf, engine.num_bytes)
    if config.model.lora is None:
        return [FinalFolder(config.run_dir / "model", *whole)]
    adapter = ("gather_adapter", engine.write_adapter, engine.num_adapter_bytes)
    merged = [FinalFolder(config.run_dir / "model-merged", *whole)] if config.checkpoint.save_merged else []
    return [FinalFolder(config.run_dir / "model", *adapter), *merged]


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
        raise RunError(f"{what} could not be written: {error.message}", hint=error.hint or hint) from error
