"""A log filter that passes a repeated line now and then, with the number of lines it held back."""

import logging
import time
from collections.abc import Collection


class FewerRepeats(logging.Filter):
    """Pass a repeated line once in `every_s` seconds, with the number of lines held back since the last.

    Two lines are equal when they come from the same log call. Lines of other levels than `levels` always pass.
    """

    def __init__(self, *, every_s: float = 10.0, levels: Collection[int] = (logging.WARNING,)) -> None:
        super().__init__()
        self._every_s, self._levels = every_s, levels
        self._seen: dict[str, tuple[float, int]] = {}
        """What equal lines share → time of the last one that passed, and number held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self._levels or self.passes(record)

    def shared(self, record: logging.LogRecord) -> str:
        """What equal lines share. A library has few log calls."""
        return str(record.msg)

    def passes(self, record: logging.LogRecord) -> bool:
        """Whether another line like `record` may pass; if so, append the number held back to its message."""
        now_s = time.monotonic()
        key = self.shared(record)
        passed_s, num_held_back = self._seen.get(key, (-self._every_s, 0))
        if now_s - passed_s < self._every_s:
            self._seen[key] = passed_s, num_held_back + 1
            return False
        self._seen[key] = now_s, 0
        if num_held_back:
            record.msg = f"{record.msg} ({num_held_back} more since the last such line)"
        return True
