"""End a run on SIGTERM, SIGINT or SIGHUP between two stages, with a checkpoint."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    # The terminal is gone. With nohup it is ignored, and stays so.
    *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []),
)


ONE_STOP_S = 1.0
"""Signals that come together are one decision."""


class StopRequested(Exception):  # noqa: N818 - a request, not an error
    """A stop was requested while the run waited."""


class StopSignal:
    """Record that a stop was requested. It interrupts at once only inside `interruptible`.

    A second signal ends the process the usual way, without waiting for the checkpoint; a second SIGHUP, or one within
    `ONE_STOP_S` of the first, does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._signalled, self._signalled_s = False, 0.0
        self._interruptible = False

    def install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """Let a stop end the process at once from now on, inside any library."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def record_only(self) -> None:
        """Only record stops from now on, in a rank that follows: rank 0 learns of them, and decides for all."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        """Request a stop, as a signal does that comes while nothing is interruptible; in any thread."""
        self.requested = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        repeated = time.monotonic() - self._signalled_s < ONE_STOP_S
        if self._signalled and (repeated or number == signal.SIGHUP):
            return  # a shell and the kernel both send SIGHUP when a terminal closes, `timeout` signals twice
        if self._signalled:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = self._signalled = True
        self._signalled_s = time.monotonic()
        if self._interruptible:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Wrap waits that change nothing: a stop ends them with StopRequested."""
        if self.requested:
            raise StopRequested
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Wrap waits inside a library, where no handler runs, while there is nothing to save: a stop ends the process.

        Raises StopRequested when a stop was requested before. Installs the handler afterwards.
        """
        self.uninstall()
        try:
            if self.requested:
                raise StopRequested
            yield
        finally:
            self.install()
