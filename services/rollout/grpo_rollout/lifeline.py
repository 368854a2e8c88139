"""Engine processes die with the process that started them, also when that one is killed."""

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Does nothing in a process without a Python parent.

    vLLM's engine and worker processes outlive a killed API server otherwise, and hold memory and ports. The parent may
    have died before the kernel was told, so this looks again afterwards.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    if os.getppid() != parent.pid:
        os._exit(1)
