"""End a process that was in a Gloo group: do what Python does at exit, except finalizing the interpreter.

Gloo's threads release a collective's tensors after its waiter has gone on, and need the GIL for that. Python ends a
thread that requests the GIL during finalization with an exception that may not pass through C++ code: the process
aborts, "terminate called without an active exception", after a successful run. Destroying the groups does not help
while any library, DeepSpeed for example, holds a reference to a group. (pytorch/pytorch#190489)
"""

import atexit
import ctypes
import os
import sys
import threading
from typing import NoReturn

OUTPUT_LOST = 120


def end_process(status: int) -> NoReturn:
    """Wait for threads, call the functions registered with atexit, flush the output, and exit with `status`.

    As in Python, status 0 becomes 120 when output cannot be written, as on a full disk or a closed pipe.
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
    ctypes.CDLL(None).fflush(None)  # the output of C libraries, such as NCCL
    os._exit(status)
