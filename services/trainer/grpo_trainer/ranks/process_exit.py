"""The end of a process that was in a Gloo group: all that Python does at its end, but taking the interpreter down.

Gloo's threads let go of a collective's tensors after whoever waited for it has gone on, and need the GIL for that. A
thread that asks for it while the interpreter is taken down is ended by an exception that C++ code lets nobody pass: the
process aborts, "terminate called without an active exception", after a run that went well. Destroying the groups does
not help for as long as anything, DeepSpeed for one, holds one of them. (pytorch/pytorch#190489)
"""

import atexit
import ctypes
import os
import sys
import threading
from typing import NoReturn

OUTPUT_LOST = 120


def end_process(status: int) -> NoReturn:
    """End with `status`: threads are waited for, what was registered for the end is called, output is written.

    As with Python, status 0 becomes 120 when output cannot be written, to a full disk or to nobody.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError:
            status = status or OUTPUT_LOST
    ctypes.CDLL(None).fflush(None)  # what C libraries, NCCL for one, have printed
    os._exit(status)
