"""A line of a log that comes again and again is written now and then, with how often it was not."""

import logging
import time
from collections.abc import Collection


class FewerRepeats(logging.Filter):
    """A line that comes again and again passes once in `every_s` seconds, and says how often it did not.

    Lines are the same when they come from the same log call. Those of other `levels` pass, always.
    """

    def __init__(self, *, every_s: float = 10.0, levels: Collection[int] = (logging.WARNING,)) -> None:
        super().__init__()
        self._every_s, self._levels = every_s, levels
        self._seen: dict[str, tuple[float, int]] = {}
        """Message → when one passed, and how many have not since; a library has a handful of messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self._levels or self.passes(record)

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether it is time for another line like `record`; if so, it is told how many there were."""
        now_s = time.monotonic()
        passed_s, num_more = self._seen.get(record.msg, (-self._every_s, 0))
        if now_s - passed_s < self._every_s:
            self._seen[record.msg] = passed_s, num_more + 1
            return False
        self._seen[record.msg] = now_s, 0
        if num_more:
            record.msg = f"{record.msg} ({num_more} more since the last such line)"
        return True
