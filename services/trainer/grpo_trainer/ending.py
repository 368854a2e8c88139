"""The end of a process that was in a Gloo group: all that Python does at its end, but taking the interpreter down.

Gloo's threads let go of a collective's tensors after whoever waited for it has gone on, and need the GIL for that. A
thread that asks for it while the interpreter is taken down is ended by an exception that C++ code lets nobody pass: the
process aborts, "terminate called without an active exception", after a run that went well. Destroying the groups does
not help for as long as anything, DeepSpeed for one, holds one of them. (pytorch/pytorch#190489)
"""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End with `status`: threads are waited for, what was registered for the end is called, output is written."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
