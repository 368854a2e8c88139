"""The files of what the processes of episodes print: of a run with millions of episodes the newest ones stay."""

import contextlib
import logging
from collections import OrderedDict
from pathlib import Path

log = logging.getLogger(__name__)

MAX_FILES = 4096
"""At most 4 GiB, with 1 MiB each."""
REMOVED_AT_ONCE = 100
"""A run that was begun without this limit may have a million files: the event loop does not wait for that."""


class KeptLogs:
    """The folder `RUN/agents`, with a file for each episode that printed something."""

    def __init__(self, folder: Path):
        self.folder = folder
        found = folder.glob("*.log")  # of this run before its resume
        self._ended = OrderedDict.fromkeys(sorted(found, key=_modified))
        """Files of episodes that have ended, the oldest first; of one that printed nothing there is none."""
        self._told = False

    def file_of(self, session_id: str) -> Path:
        """Return the file of an episode that begins. It is kept until `ended`, also when it was played before."""
        file = self.folder / f"{session_id}.log"
        self._ended.pop(file, None)
        return file

    def ended(self, file: Path) -> None:
        """Take up the file of an episode that has ended, and remove the oldest of those that are too many."""
        self._ended[file] = None
        for _ in range(min(len(self._ended) - MAX_FILES, REMOVED_AT_ONCE)):
            with contextlib.suppress(OSError):
                self._ended.popitem(last=False)[0].unlink()
            if not self._told:
                self._told = True
                log.info(
                    "%s keeps what the newest %d episodes printed: older files are removed", self.folder, MAX_FILES
                )


def _modified(file: Path) -> float:
    """When it was last written, in seconds; 0 for one that somebody has just removed."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
