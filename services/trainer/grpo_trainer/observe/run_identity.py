"""The identity of a run at an experiment tracker, kept in the run folder: a resumed run continues under it."""

import secrets
from collections.abc import Callable
from pathlib import Path


def run_identity(
    run_dir: Path, tracker: str, *, resumed: bool, new: Callable[[], str] = lambda: secrets.token_hex(4)
) -> str:
    """Return the identity in `{tracker}_id.txt` of a resumed run; without it, write a `new` identity there."""
    file = run_dir / f"{tracker}_id.txt"
    if resumed and file.exists() and (known := file.read_text().strip()):
        return known
    made = new()
    file.write_text(f"{made}\n")
    return made
