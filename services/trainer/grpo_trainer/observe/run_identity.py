"""The identity of a run at an experiment tracker, kept in the run folder: a resumed run continues under it."""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from ..kept_identity import kept_identity

log = logging.getLogger(__name__)


def run_identity(
    run_dir: Path, tracker: str, *, resumed: bool, new: Callable[[], str] = lambda: secrets.token_hex(4)
) -> str:
    """Return the identity in `{tracker}_id.txt` of a resumed run; without it, and for a copy of its folder, write a
    `new` identity there."""
    file = run_dir / f"{tracker}_id.txt"
    if not resumed:
        file.unlink(missing_ok=True)
    found, copied_from = kept_identity(file, new)
    if copied_from is not None:
        log.warning("%s: the run folder was copied from run %s, and goes on as run %s", tracker, copied_from, found)
    return found
