"""A limit on the processor time of one piece of work, inside a worker process.

Computer algebra has no bound that its input shows: what looks harmless may compute for ever.
"""

import gc
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

ResultT = TypeVar("ResultT")

AGAIN_S = 0.2
"""After the limit the work is ended again and again: a library may swallow it once, and what is raised in a `__del__`
is printed and lost."""


class TooCostly(BaseException):
    """The work was ended at its limit. No `except Exception` of a library may swallow it."""


def limited(work: Callable[[], ResultT], *, cpu_s: float) -> ResultT:
    """What `work` gives. Raises TooCostly when it takes more than `cpu_s` seconds of this process's own time.

    Python hears of a signal between two of its instructions, in its main thread: one long call into C is not ended, and
    in another thread there is no limit. Workers score in their main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()

    def end(_: int, frame: FrameType | None) -> None:
        if not _collects_garbage(frame):
            raise TooCostly

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s, AGAIN_S)
            return work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    except TooCostly:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)  # it may have come before the line above
        raise
    finally:
        signal.signal(signal.SIGVTALRM, before)


def _collects_garbage(frame: FrameType | None) -> bool:
    """Whether Python is in a callback of `gc.callbacks`: what is raised there is printed and lost.

    A signal that comes in a collection, which is one call into C, is heard of at the first instruction of a callback.
    """
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False
