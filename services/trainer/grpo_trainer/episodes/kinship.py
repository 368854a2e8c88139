"""Who is whose child, and how processes end together (Linux)."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A child that is forked does not inherit it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def live_on() -> None:
    """Undo `die_with_parent`. The parent counts as ended when the *thread* that started this process ends."""
    _libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def keep_what_children_leave() -> None:
    """Become the parent of whatever a process below leaves behind. It outlasts `exec`, and is not inherited."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> set[int]:
    """The processes whose parent is `pid`, the dead among them that nobody has waited for."""
    try:
        # Microseconds, where the kernel has it: what forks again and again must be found before it does.
        lists = [Path(task.path, "children").read_bytes() for task in os.scandir(f"/proc/{pid}/task")]
        return {int(child) for children in lists for child in children.split()}
    except OSError:
        return _children_by_parent(pid)


def _children_by_parent(pid: int) -> set[int]:
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # Field 4, behind the name in parentheses, which may hold anything.
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == pid:
                    found.add(int(entry.name))
    return found


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the group that `pid` leads, and `pid`, which may not have come to lead it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill(pid)
