"""Checkpoints that are complete or absent.

A checkpoint is written into a temporary folder, described by `manifest.json` (every file with size and SHA-256), synced
and renamed. A resume moves checkpoints that do not match their manifest aside, with a warning. A checkpoint holds all
that a run needs to resume: weights, optimizer and random generators of every rank in `engine/`; step, prompt cursor and
totals in `state.json`. It holds no policy version: a resumed run pushes before it samples.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError, storage_error_class

log = logging.getLogger(__name__)

STATE, MANIFEST = "state.json", "manifest.json"
PREFIX, TEMPORARY = "checkpoint-", ".tmp-checkpoint-"

Described = dict[str, dict[str, Any]]
"""The files of a checkpoint by name: `bytes` and `sha256`."""


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"{PREFIX}{step}"


def temporary_folder(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"{TEMPORARY}{step}"


def remove_unfinished(run_dir: Path) -> None:
    """Remove what a crash or a full disk left of unfinished checkpoints, of any step. Rank 0 only."""
    for left in unfinished_folders(run_dir):
        shutil.rmtree(left, ignore_errors=True)


def unfinished_folders(run_dir: Path) -> list[Path]:
    return list((run_dir / "checkpoints").glob(f"{TEMPORARY}*"))


def bytes_of(folder: Path) -> int:
    """Size of the files of a checkpoint, finished or not."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def begin_checkpoint(run_dir: Path, step: int) -> Path:
    """Make an empty temporary folder for step `step`. Rank 0 only."""
    remove_unfinished(run_dir)
    folder = temporary_folder(run_dir, step)
    folder.mkdir(parents=True)
    return folder


def list_files(folder: Path) -> list[str]:
    """List the files of a checkpoint under construction, relative to its folder."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in paths if name not in (STATE, MANIFEST))


def describe_files(folder: Path, names: Iterable[str]) -> Described:
    """Compute size and SHA-256 of each file of a checkpoint under construction, read back after a sync."""
    return {name: _describe(folder / name) for name in names}


def finish_checkpoint(
    run_dir: Path,
    step: int,
    state: dict[str, Any],
    files: Described,
    *,
    keep: int,
    spared: Collection[int] = (),
) -> Path:
    """Write state and manifest into the temporary folder, and rename it. Rank 0 only.

    `files` describes the other files. Removes all but the newest `keep` checkpoints and those of the steps in `spared`
    afterwards. Raises OSError, as on a full disk.
    """
    temporary, final = temporary_folder(run_dir, step), checkpoint_folder(run_dir, step)
    _write_synced(temporary / STATE, json.dumps(state, indent=1).encode())
    files = files | describe_files(temporary, [STATE])
    _write_synced(temporary / MANIFEST, json.dumps({"step": step, "files": files}, indent=1).encode())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    _sync_folder(final.parent)
    for old in set(list_steps(run_dir)[:-keep]).difference(spared):
        shutil.rmtree(checkpoint_folder(run_dir, old), ignore_errors=True)  # another process may be reading it over NFS
    return final


def list_steps(run_dir: Path) -> list[int]:
    """List the steps that have a checkpoint, ascending; `verify` checks whether a checkpoint is whole."""
    names = [path.name for path in (run_dir / "checkpoints").glob(f"{PREFIX}*")]
    return sorted(int(name.removeprefix(PREFIX)) for name in names if name.removeprefix(PREFIX).isdigit())


def find_latest(
    run_dir: Path, *, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint and its state; None without checkpoints. Skips damaged ones with a warning.

    `reading` wraps the verification, which changes nothing and takes minutes for a large checkpoint.
    Raises UsageError when there are checkpoints but none is whole: a run from the beginning would hide that.
    """
    steps = list_steps(run_dir)
    found = newest_whole(run_dir, steps, reading=reading)
    if found is None and steps:
        raise UsageError(
            f"none of the {len(steps)} checkpoints in {run_dir / 'checkpoints'} is whole",
            hint="start without --resume and with another run_dir, or restore a checkpoint from a copy",
        )
    return found


def newest_whole(
    run_dir: Path, steps: Sequence[int], *, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint of `steps`, which ascend, and its state; None when none is whole.

    `reading` and damaged checkpoints: as in `find_latest`.
    """
    damaged: list[int] = []
    for step in reversed(steps):
        folder = checkpoint_folder(run_dir, step)
        with reading():
            problem = verify(folder)
        if problem is None:
            for damaged_step in damaged:
                _put_aside(run_dir, damaged_step)
            return folder, json.loads((folder / STATE).read_text())
        log.warning("skipping the damaged checkpoint %s: %s", folder, problem)
        damaged.append(step)
    return None


def _put_aside(run_dir: Path, step: int) -> None:
    """Move a damaged checkpoint aside, so that it does not count for `keep`; the next checkpoint removes it.

    Raises TrainerError when it cannot be moved.
    """
    folder, aside = checkpoint_folder(run_dir, step), temporary_folder(run_dir, step)
    log.warning("moving the damaged checkpoint to %s; the next checkpoint removes it", aside)
    shutil.rmtree(aside, ignore_errors=True)  # a leftover of the same step after a crash
    try:
        folder.rename(aside)
    except OSError as error:
        raise storage_error_class(error)(f"{folder} is damaged and cannot be moved aside: {error.strerror}") from error


def verify(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint; None when it is whole.

    Two failures are no damage: raises UnavailableError when the disk is unavailable, and UsageError when this user may
    not read the checkpoint.
    """
    try:
        return _damage(folder)
    except PermissionError as error:
        raise UsageError(
            f"{error.filename or folder} is not readable for this user",
            hint="make the run folder readable for the user of the run",
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
            return f"the contents of {name} do not match its SHA-256"
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
