"""Which processes are below another, and how they end together with it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.01
MARK = "GRPO_REWARD_PROCESSES"
"""Environment variable whose value all processes of one executor inherit, wherever they end up in the tree."""
_kill, _killpg = os.kill, os.killpg
"""Kept from `os`, where a plugin may replace them: guards for untrusted code do."""


class Process(NamedTuple):
    pid: int
    parent: int
    session: int


def processes() -> list[Process]:
    """All processes of this machine, or of this container."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", entry, "stat").read_bytes()
                # The second field is the command in parentheses, which may hold anything.
                _, parent, _, session, *_ = stat[stat.rindex(b")") + 1 :].split()
                found.append(Process(int(entry), int(parent), int(session)))
    return found


def children() -> list[Process]:
    """The processes whose parent this process is."""
    return [process for process in processes() if process.parent == os.getpid()]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        _kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """The process and its group, if it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        _killpg(pid, signal.SIGKILL)
    kill(pid)


def kill_marked(mark: str) -> None:
    """All that began with this value of MARK: those whose ancestors have gone, too, unless they emptied it."""
    wanted = f"{MARK}={mark}".encode()
    for process in processes():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in Path("/proc", str(process.pid), "environ").read_bytes().split(b"\0"):
                kill(process.pid)


def kill_tree(pid: int, mark: str) -> None:
    """The process, its group, all below it, which may have made groups of their own, and what has `mark`.

    It must not be reaped yet.
    """
    below: dict[int, list[int]] = {}
    for process in processes():
        below.setdefault(process.parent, []).append(process.pid)
    found = [pid]
    for member in found:
        found += below.get(member, [])
    kill_group(pid)
    for member in found[1:]:
        kill(member)
    kill_marked(mark)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def go_on(pid: int) -> None:
    """Let a child that has been stopped go on."""
    with contextlib.suppress(ChildProcessError):  # it has ended meanwhile, and stays to be waited for
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
            _kill(pid, signal.SIGCONT)


async def end(process: subprocess.Popen[bytes], patience_s: float, mark: str) -> None:
    """Wait until it has ended, kill it when that takes longer, and in any case what is left of its group and `mark`."""
    until = time.monotonic() + patience_s
    with contextlib.suppress(ChildProcessError):  # it has been waited for
        # Not `wait`: once that has returned, the number of the group may be another's.
        while not has_ended(process.pid) and time.monotonic() < until:  # noqa: ASYNC110 - it is a process
            await asyncio.sleep(LOOK_S)
        kill_tree(process.pid, mark)
    await asyncio.to_thread(process.wait)
