"""Files and folders that are there in full or not at all."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from .errors import RunError, UsageError, storage_error_class

WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)
"""What a full disk may raise: RuntimeError in torch, and an error of its own in safetensors."""


def write_text_atomically(path: Path, text: str | Callable[[int], str]) -> None:
    """Write `path` through a neighbour and a rename: a reader, or a kill, never sees half of it. Raises OSError.

    A function that makes the text is called with the inode number that the file will have.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            # mkstemp's files are for their owner alone; results may be looked at.
            os.fchmod(file.fileno(), 0o644)
            file.write(text if isinstance(text, str) else text(os.fstat(file.fileno()).st_ino))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a write names no file, and a rename the temporary one
        raise


def write_folder_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a folder beside `path`, then put it in its place. Nothing stays of one that failed."""
    temporary, old = _beside(path)
    try:
        write(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if path.exists():
        path.rename(old)  # also possible where nothing in it may be removed
    temporary.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def save_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Write a folder that a command leaves, whole or not at all. Raises RunError where it cannot be written."""
    try:
        write_folder_atomically(path, write)
    except WRITE_ERRORS as error:
        raise RunError(f"{path} cannot be written: {error}", hint="free some space") from error


def rehearse_folder(path: Path, write: Callable[[Path], None], *, num_bytes: int) -> None:
    """Try all that `write_folder_atomically` will do, before the work; `write` leaves out what is large.

    `num_bytes`: what all of it will take. Leaves nothing. Raises UsageError, and UnavailableError for a disk that is
    too full or away.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise UsageError(f"{path} is no folder, and one has to be written there at the end", hint="move it away")
    try:
        temporary, _ = _beside(path)
        write(temporary)
        require_space(path.parent, num_bytes)
    except OSError as error:
        raise storage_error_class(error)(
            f"{path} could not be written at the end: {error}", hint="free some space, or choose another folder"
        ) from error
    except WRITE_ERRORS as error:
        raise UsageError(f"{path} could not be written at the end: {error}") from error
    finally:
        _beside(path)


def require_space(folder: Path, num_bytes: int, *, will_be_free: int = 0) -> None:
    """Raise OSError (ENOSPC) unless the disk of `folder` has `num_bytes` free. `will_be_free`: bytes to be removed."""
    free = free_bytes(folder)
    if free is not None and free + will_be_free < num_bytes:
        raise OSError(errno.ENOSPC, f"{size_text(num_bytes)} are needed, and {size_text(free)} are free", str(folder))


def free_bytes(folder: Path) -> int | None:
    """Return the free space of the disk of `folder`; None for a remote disk that does not know its size."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total > 0 else None


def size_text(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.2f} MiB"


def _beside(path: Path) -> tuple[Path, Path]:
    """Return the names of the new folder and of the one that it replaces, and remove what is left under them."""
    names = path.with_name(f".tmp-{path.name}"), path.with_name(f".old-{path.name}")
    for name in names:
        shutil.rmtree(name, ignore_errors=True)
    return names


def check_new_folder(path: Path, *, named: str) -> None:
    """Check before the work that the folder can be made and overwrites nothing. Raises UsageError, UnavailableError."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{named} {path} already exists", hint=f"remove it, or choose another {named}")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error_class(error)(f"{named} {path} cannot be made: {error.strerror}") from error
