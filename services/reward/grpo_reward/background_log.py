"""Log lines are written by a thread of their own: a standard error that nobody reads must not stop the server.

Whoever starts it with a pipe and does not read it (a notebook, a supervisor that hangs) fills the pipe; the next line
would block the event loop for ever. Here lines wait, and beyond MAX_LINES they are dropped and counted.
"""

import logging
import queue
import threading

from grpo_proto.fewer_repeats import FewerRepeats

MAX_LINES = 10_000
NO_FILES = "socket.accept() out of system resource"
"""How asyncio begins its error for a connection that it has no file for."""
UNFIT_ADVICE = "No supported WebSocket library detected"
"""uvicorn's, to whoever runs a server that has no use for one."""


class BackgroundHandler(logging.Handler):
    """Gives records to `handler` from a thread."""

    def __init__(self, handler: logging.Handler):
        super().__init__()
        self._handler = handler
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_LINES)
        self._num_dropped = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._num_dropped += 1

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            dropped, self._num_dropped = self._num_dropped, 0
            if dropped:
                self._handler.handle(
                    logging.makeLogRecord(
                        {
                            "name": __name__,
                            "levelno": logging.WARNING,
                            "levelname": "WARNING",
                            "msg": f"{dropped} lines of this log were dropped: nobody read standard error",
                        }
                    )
                )
            self._handler.handle(record)

    def finish(self, timeout_s: float) -> bool:
        """Write what waits. False when that was not possible in time."""
        try:
            self._records.put_nowait(None)
        except queue.Full:
            return False
        self._writer.join(timeout_s)
        return not self._writer.is_alive()


class OddRequests(FewerRepeats):
    """Strangers could fill a disk with what is said of their requests, hundreds of lines a second.

    It is uvicorn's line for what is no HTTP, asyncio's, which has a traceback for every connection while it is out of
    files, and that of the adapters for every request without a score.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(NO_FILES):
            reason = record.exc_info[1] if record.exc_info else None
            record.msg = f"{NO_FILES}: {getattr(reason, 'strerror', None) or reason}" if reason else NO_FILES
            record.args, record.exc_info = (), None
            return self.passes(record)
        if record.levelno == logging.WARNING and str(record.msg).startswith(UNFIT_ADVICE):
            return False
        return super().filter(record)
