"""SIGTERM and SIGINT end a run between two stages, with a checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """A stop ends the process at once from here on, in whatever library it is."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def ignore(self) -> None:
        """A stop does nothing from here on: rank 0 gets it, too, and decides for all ranks."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

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

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """For waits in a library that no handler interrupts, while there is nothing to save: a stop ends the process.

        Raises StopRequested when a stop was asked for before. The handler is installed afterwards.
        """
        self.uninstall()
        try:
            if self.requested:
                raise StopRequested
            yield
        finally:
            self.install()
