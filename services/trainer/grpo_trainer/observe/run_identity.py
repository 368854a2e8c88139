"""The name that an experiment tracker has for a run. It lives in the run folder: a resumed run goes on under it."""

import secrets
from collections.abc import Callable
from pathlib import Path


def run_identity(
    run_dir: Path, tracker: str, *, resumed: bool, new: Callable[[], str] = lambda: secrets.token_hex(4)
) -> str:
    """The identity in `{tracker}_id.txt`, or a `new` one, written there. A run that begins anew gets a new one."""
    file = run_dir / f"{tracker}_id.txt"
    if resumed and file.exists() and (known := file.read_text().strip()):
        return known
    made = new()
    file.write_text(f"{made}\n")
    return made
