"""The files of what the processes of episodes print: of a run with millions of episodes the newest ones stay."""

import contextlib
import logging
from pathlib import Path

log = logging.getLogger(__name__)

MAX_FILES = 4096
"""At most 4 GiB, with 1 MiB each."""


class KeptLogs:
    """The folder `RUN/agents`, with a file for each episode that printed something."""

    def __init__(self, folder: Path):
        self.folder = folder
        found = folder.glob("*.log")  # of this run before its resume
        self._files = dict.fromkeys(sorted(found, key=lambda path: path.stat().st_mtime))
        """The oldest first."""
        self._removed = 0

    def file_of(self, session_id: str) -> Path:
        return self.folder / f"{session_id}.log"

    def ended(self, file: Path) -> None:
        """Take up the file of an episode that has ended, where it printed something; remove those that are too many."""
        if file.exists():
            self._files.pop(file, None)  # an episode that was played once more
            self._files[file] = None
        while len(self._files) > MAX_FILES:
            oldest = next(iter(self._files))
            del self._files[oldest]
            with contextlib.suppress(OSError):
                oldest.unlink()
            self._removed += 1
            if self._removed == 1:
                log.info(
                    "%s keeps what the newest %d episodes printed: older files are removed", self.folder, MAX_FILES
                )
