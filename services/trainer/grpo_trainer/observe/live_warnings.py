"""The warnings and errors of a run's log, the newest ones, for the live page."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpo_proto.log_lines import Redacting

from .live_groups import clean

MAX_WARNINGS = 30
MAX_TEXT = 600


def redacting() -> Redacting:
    """Return a filter that hides the secrets that the log hides."""
    return Redacting("trainer")


class RecentWarnings(logging.Handler):
    """Keep the last `MAX_WARNINGS` different texts; a repeated text is counted, not kept twice."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._redacting = redacting()
        self._mutex = threading.Lock()
        self._found: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._redacting.message_of(record)
        except Exception:  # a broken log call must not end the run; logging itself reports it
            self.handleError(record)
            return
        level, text = record.levelname.lower(), clean(text, MAX_TEXT)
        with self._mutex:
            count = self._found.pop((level, text), {"count": 0})["count"] + 1
            self._found[level, text] = {"level": level, "text": text, "count": count, "time_s": round(record.created)}
            if len(self._found) > MAX_WARNINGS:
                self._found.popitem(last=False)

    def shown(self) -> list[dict[str, Any]]:
        """Newest first."""
        with self._mutex:
            return [dict(entry) for entry in reversed(self._found.values())]


@contextmanager
def recent_warnings() -> Iterator[RecentWarnings]:
    """Collect the warnings of the whole process while inside."""
    handler = RecentWarnings()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
