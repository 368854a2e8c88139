"""An identity that a run folder keeps, and a copy of the folder does not: a copy is another run.

Beside the identity its file holds its own inode number, which a copy of it does not have. A file of an older release
holds the identity alone.
"""

from collections.abc import Callable
from pathlib import Path

from .atomic_file import write_text_atomically


def kept_identity(file: Path, new: Callable[[], str]) -> tuple[str, str | None]:
    """Return the identity in `file`; for a copy, and without a file, a `new` one, which is written there, with the
    identity of which it is a copy, if it is one. Raises OSError."""
    found, *inode = (file.read_text().splitlines() if file.exists() else []) or [""]
    if found and (not inode or int(inode[0]) == file.stat().st_ino):
        return found, None
    made = new()
    write_text_atomically(file, lambda number: f"{made}\n{number}\n")
    return made, found or None
