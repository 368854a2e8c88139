"""Files and folders that are there in full or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from .errors import UsageError, storage_error_class

WRITE_ERRORS = (OSError, RuntimeError, SafetensorError)
"""What a full disk may raise: RuntimeError in torch, and an error of its own in safetensors."""


def write_text_atomically(path: Path, text: str) -> None:
    """Write `path` through a neighbour and a rename: a reader, or a kill, never sees half of it. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            # mkstemp's files are for their owner alone; results may be looked at.
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_folder_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a folder beside `path`, then put it in its place. Nothing stays of one that failed."""
    temporary = path.with_name(f".tmp-{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if path.is_dir():
        shutil.rmtree(path)
    temporary.rename(path)


def check_new_folder(path: Path, *, named: str) -> None:
    """Check before the work that the folder can be made and overwrites nothing. Raises UsageError, UnavailableError."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{named} {path} already exists", hint=f"remove it, or choose another {named}")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error_class(error)(f"{named} {path} cannot be made: {error.strerror}") from error
