"""Checkpoints that are complete or absent.

A checkpoint is written into a temporary folder, described by `manifest.json` (every file with size and SHA-256), synced
and renamed. On resume one without a manifest that holds is put aside, with a warning. Everything a run needs to go on
is in it: weights, optimizer and random generators of every rank in `engine/`; step, prompt cursor and totals in
`state.json`. No policy version is kept: a resumed run pushes before it samples.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError, storage_error_class

log = logging.getLogger(__name__)

STATE, MANIFEST = "state.json", "manifest.json"
PREFIX, TEMPORARY = "checkpoint-", ".tmp-checkpoint-"


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"{PREFIX}{step}"


def temporary_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"{TEMPORARY}{step}"


def remove_unfinished(run_dir: Path) -> None:
    """What a crash or a full disk left of checkpoints, whatever their step. Rank 0 only."""
    for left in (run_dir / "checkpoints").glob(f"{TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)


def begin_checkpoint(run_dir: Path, step: int) -> Path:
    """An empty temporary folder for step `step`. Rank 0 only."""
    remove_unfinished(run_dir)
    folder = temporary_folder(run_dir, step)
    folder.mkdir(parents=True)
    return folder


def list_files(folder: Path) -> list[str]:
    """The files of a checkpoint that is being written, relative to its folder."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in paths if name not in (STATE, MANIFEST))


def describe_files(
    folder: Path, names: list[str], *, beat: Callable[[], None] = lambda: None
) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each, read back from a synced file. A terabyte takes minutes: ranks share the files, and
    `beat` hears of each."""
    described = {}
    for name in names:
        described[name] = _describe(folder / name)
        beat()
    return described


def finish_checkpoint(
    run_dir: Path, step: int, state: dict[str, Any], files: dict[str, dict[str, Any]], *, keep: int
) -> Path:
    """Seal the temporary folder, whose other `files` are described, and give it its name. Rank 0 only.

    Then all but the newest `keep` are removed. Raises OSError, as on a full disk.
    """
    temporary, final = temporary_folder(run_dir, step), checkpoint_folder(run_dir, step)
    _write_synced(temporary / STATE, json.dumps(state, indent=1).encode())
    files = files | describe_files(temporary, [STATE])
    _write_synced(temporary / MANIFEST, json.dumps({"step": step, "files": files}, indent=1).encode())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _sync_folder(final.parent)
    for old in list_steps(run_dir)[:-keep]:
        shutil.rmtree(checkpoint_folder(run_dir, old), ignore_errors=True)  # somebody may be reading it over NFS
    return final


def list_steps(run_dir: Path) -> list[int]:
    """Steps that have a checkpoint, ascending; whether each is whole, `verify` says."""
    names = [path.name for path in (run_dir / "checkpoints").glob(f"{PREFIX}*")]
    return sorted(int(name.removeprefix(PREFIX)) for name in names if name.removeprefix(PREFIX).isdigit())


def find_latest(
    run_dir: Path, *, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint and its state; None when there is none. Broken ones are skipped with a warning.

    `reading` is held while a checkpoint is only read, which takes minutes for a large one.
    Raises UsageError when there are checkpoints but none is whole: starting from the beginning would hide that.
    """
    steps = list_steps(run_dir)
    damaged: list[int] = []
    for step in reversed(steps):
        folder = checkpoint_folder(run_dir, step)
        with reading():
            problem = verify(folder)
        if problem is None:
            for one in damaged:
                _put_aside(run_dir, one)
            return folder, json.loads((folder / STATE).read_text())
        log.warning("skipping the checkpoint %s: %s", folder, problem)
        damaged.append(step)
    if steps:
        raise UsageError(
            f"none of the {len(steps)} checkpoints in {run_dir / 'checkpoints'} is whole",
            hint="start without --resume and with another run_dir, or restore one from a copy",
        )
    return None


def _put_aside(run_dir: Path, step: int) -> None:
    """A damaged one takes no place of a whole one; the next checkpoint removes it. Raises TrainerError."""
    folder, aside = checkpoint_folder(run_dir, step), temporary_folder(run_dir, step)
    log.warning("it is %s from now on, and is removed when the next checkpoint is written", aside)
    shutil.rmtree(aside, ignore_errors=True)  # what a crash left of the same step
    try:
        folder.rename(aside)
    except OSError as error:
        raise storage_error_class(error)(f"{folder} is damaged and cannot be put aside: {error.strerror}") from error


def verify(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None when it is whole. Raises UnavailableError when the disk is away, and
    UsageError when this user may not read it: that is no damage."""
    try:
        return _damage(folder)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename or folder} may not be read by us",
            hint="give the run folder to the user of the run",
        ) from error
    except OSError as error:
        if storage_error_class(error) is UnavailableError:
            raise UnavailableError(f"{error.filename or folder} cannot be read now: {error.strerror}") from error
        return f"it cannot be read ({error})"


def _damage(folder: Path) -> str | None:
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except (ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({error})"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        if _describe(path) != expected:
            return f"{name} has other contents than were written"
    return None


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
