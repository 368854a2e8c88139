"""An experiment tracker in its own thread: a tracker server that hangs or is gone blocks this thread alone.

The loop queues a step and continues. Waits for: nothing, but `finish` at the end of a run, at most `FINISH_S`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..ranks.stop_signal import StopSignal

log = logging.getLogger(__name__)

MAX_WAITING_STEPS = 1000
"""Steps that may wait for a slow server; further steps are lost to the tracker, and counted."""
TRIES = 40
"""Attempts to write a step, over nine minutes; then it is lost: a refused step must not block later steps."""
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 15.0
"""Backoff after a failed write, doubled each time. Steps wait meanwhile: a restarted server misses none."""
FINISH_S = 25.0
"""Limit for all trackers together at the end of a run. torchrun kills rank 0 half a minute after another rank failed;
the run must be closed before that."""
HANGS_S = 15.0
"""The end of a run does not wait for a tracker that has been in one call for this long: it would delay a stop."""
POLL_S = 0.1

ERRORS = (Exception, SystemExit)
"""No exception of a tracker's library may end the run. Some raise SystemExit when they cannot log in."""


class MetricSink(Protocol):
    """Takes the metrics of one step; only finite numbers reach it. May raise whatever its library raises."""

    name: str

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, failure: str | None) -> None:
        """The run is over, or ended by `failure`."""


class BackgroundSink:
    """Open a sink, write to it and close it, all in one daemon thread, which calls `failed` with each error.

    A sink that cannot be opened is switched off; a write that fails is tried again. `lost_steps` counts the steps that
    the tracker did not get, for any reason; waiting steps are not lost.
    """

    def __init__(self, name: str, opener: Callable[[], MetricSink], *, failed: Callable[[str, BaseException], None]):
        self.name, self._opener, self._failed = name, opener, failed
        self.lost_steps = 0
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[tuple[int, Mapping[str, float]]] = deque()  # the first step is being written
        self._off = self._ending = False
        self._failure: str | None = None
        self._called_at_s: float | None = time.monotonic()
        """Start of the call in progress, first that of opening; None between calls."""
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Never waits for the tracker, and raises nothing."""
        with self._changed:
            if not self._off and len(self._waiting) < MAX_WAITING_STEPS:
                self._waiting.append((step, metrics))
                self._changed.notify()
                return
            self.lost_steps += 1
            off, lost = self._off, self.lost_steps
        # Log powers of two, as for failures; a sink that is switched off was logged before.
        if not off and lost & (lost - 1) == 0:
            log.warning("%s: %d steps wait already, step %d is lost", self.name, MAX_WAITING_STEPS, step)

    def end(self, failure: str | None) -> None:
        """Write the waiting steps, then close. `failure`: why the run ended, if it is not done."""
        with self._changed:
            self._ending, self._failure = True, failure
            self._changed.notify()

    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def hangs(self) -> bool:
        """Whether the call in progress has taken longer than `HANGS_S`."""
        with self._changed:
            since_s = self._called_at_s
        return self.is_busy() and since_s is not None and time.monotonic() - since_s > HANGS_S

    def give_up(self) -> None:
        """Drop the steps that still wait, and log how many."""
        if self.is_busy():
            log.warning("%s: has not closed in time; the run ends without it", self.name)
        self._switch_off()
        if self.lost_steps:
            log.warning("%s: %d steps did not arrive; metrics.jsonl has all of them", self.name, self.lost_steps)

    def _run(self) -> None:
        try:
            sink = self._opener()
        except ERRORS as error:
            self._failed("open", error)
            self._switch_off()
            return
        self._answered()
        self._write_all(sink)
        try:
            sink.close(self._failure)
        except ERRORS as error:
            self._failed("close", error)

    def _write_all(self, sink: MetricSink) -> None:
        """Write steps until the end. While a server is away, retry the first step with backoff; the others wait."""
        failures = tries = 0  # in a row, and of this step
        while (item := self._next()) is not None:
            step, metrics = item
            try:
                sink.write(step, metrics)
            except ERRORS as error:
                failures, tries = failures + 1, tries + 1
                self._failed("write", error)
                self._answered()
                if tries == TRIES:
                    tries = 0
                    self._done(arrived=False)
                self._pause(failures)
            else:
                failures = tries = 0
                self._answered()
                self._done(arrived=True)

    def _pause(self, failures: int) -> None:
        """Back off after `failures` in a row. The end of the run cuts a long pause short: its time is limited."""
        with self._changed:
            ending = self._ending
            seconds = FIRST_PAUSE_S if ending else FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)
            self._changed.wait_for(lambda: self._ending != ending, min(LAST_PAUSE_S, seconds))

    def _next(self) -> tuple[int, Mapping[str, float]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            if not self._waiting:
                return None
            self._called_at_s = time.monotonic()
            return self._waiting[0]

    def _answered(self) -> None:
        with self._changed:
            self._called_at_s = None

    def _done(self, *, arrived: bool) -> None:
        with self._changed:
            if self._waiting:  # empty after `give_up`
                self._waiting.popleft()
                self.lost_steps += not arrived

    def _switch_off(self) -> None:
        with self._changed:
            self._off = True
            self.lost_steps += len(self._waiting)
            self._waiting.clear()


def finish(sinks: Sequence[BackgroundSink], stop: StopSignal, *, failure: str | None) -> None:
    """End a run, by `failure` if given: each tracker takes its waiting steps, within `FINISH_S` for all together.

    A stop signal ends the wait. Where a stop ended the run, a second signal ends the process, as everywhere. A failure
    ends all ranks, and torchrun signals this rank as soon as another is gone: that signal does not end the wait.
    """
    heeds_stop = failure is None and not stop.requested  # read before `sink.end`, which makes the end visible
    awaited = [sink for sink in sinks if not sink.hangs()]
    for sink in sinks:
        sink.end(failure)
    deadline = time.monotonic() + FINISH_S
    while any(sink.is_busy() for sink in awaited) and time.monotonic() < deadline:
        if heeds_stop and stop.requested:
            break
        time.sleep(POLL_S)
    for sink in sinks:
        sink.give_up()
