"""SIGTERM and SIGINT end a run between two stages, with a checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequested(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to stop while it waited."""


class StopSignal:
    """Remembers that a stop was asked for. Only inside `interruptible` does it interrupt at once.

    A second signal ends the process the usual way: whoever sends it does not want to wait for the checkpoint.
    """

    def __init__(self) -> None:
        self.requested = False
        self._interruptible = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True
        if self._interruptible:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """For waits that change nothing: a stop ends them by StopRequested."""
        if self.requested:
            raise StopRequested
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False
