"""Admit a single trainer to a run folder: rank 0 holds a lock in it until its process ends, by exit or by crash.

Two trainers writing the same metrics.jsonl and checkpoints would ruin both runs. The lock is a POSIX lock: a file
server enforces it across machines, and forked processes do not inherit it.
"""

import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from ..errors import UnavailableError, storage_error_class

log = logging.getLogger(__name__)

POLL_S = 0.5


@contextmanager
def only_trainer_in(
    run_dir: Path, *, timeout_s: float, interruptible: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Hold the lock of `run_dir`, which exists. A stop interrupts the wait, by `interruptible`.

    Warns and goes on where the file system has no locks. Raises UnavailableError, naming the process that holds the
    lock, when it is not free within `timeout_s`.
    """
    file = run_dir / ".lock"
    try:
        lock = file.open("a+")
    except OSError as error:
        raise storage_error_class(error)(f"{file} cannot be written: {error.strerror}") from error
    with lock:
        with interruptible():
            _wait_for(lock, file, timeout_s)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield


def _wait_for(lock: TextIO, file: Path, timeout_s: float) -> None:
    give_up_s, warned = time.monotonic() + timeout_s, False
    while not _taken(lock, file):
        lock.seek(0)
        holder = lock.read(200).strip() or "another process"
        if time.monotonic() >= give_up_s:
            raise UnavailableError(
                f"run_dir {file.parent} is in use by {holder}: it has held {file.name} for {timeout_s:g} s",
                hint="end that process, raise lock_timeout_s if it is still saving, or choose another run_dir",
            )
        if not warned:
            warned = True
            log.warning("run_dir %s is in use by %s: waiting for its end, %g s at most", file.parent, holder, timeout_s)
        time.sleep(POLL_S)


def _taken(lock: TextIO, file: Path) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        log.warning("%s cannot be locked here (%s): nothing keeps a second trainer out", file, error.strerror)
    return True
