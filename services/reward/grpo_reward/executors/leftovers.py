"""What a reward may leave behind in its worker that others would suffer from; then the worker leaves, too.

Not malice, which has other ways (a plugin has the server's rights), but what code for research does: it lowers limits,
closes streams, ignores signals, changes the environment, makes errors of warnings, profiles, forgets files, threads and
children.
"""

import _thread
import ast
import asyncio
import builtins
import decimal
import fractions
import gc
import json
import locale
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

MORE_FILES = 100
"""Open files more than at the beginning: libraries open some of their own, once."""
_SIGNALS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGUSR1)
_LIMITS = (
    resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC, resource.RLIMIT_STACK,
)  # fmt: skip
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (os, "fork"), (os, "kill"), (os, "remove"), (os, "unlink"), (os, "rmdir"), (os, "chdir"), (os, "getcwd"),
    (os, "listdir"), (json, "dumps"), (json, "loads"), (sys, "stdout"), (sys, "stderr"),
    (subprocess.Popen, "__init__"), (subprocess.Popen, "communicate"), (socket, "socket"), (socket, "getaddrinfo"),
    (socket.socket, "connect"), (asyncio, "run"), (asyncio, "sleep"), (asyncio, "timeout"), (asyncio, "wait_for"),
)  # fmt: skip
"""Those that guards for untrusted programs and for networks replace in their own process, that programs answer with,
the streams."""
_WHOLE: tuple[Any, ...] = (builtins, subprocess, decimal, fractions, fractions.Fraction, math, re, ast, time)
"""Modules and classes of which nothing may be another: programs are started with them, and scores computed."""
_READ_HERE = ("GRPO_", "SSL_", "JUDGE_", "REWARD_MODEL_")
"""Beginnings of the variables that rewards of ours go by."""


def stop_timers() -> None:
    """They would go off in another reward's time."""
    for timer in _TIMERS:
        signal.setitimer(timer, 0.0)


def _arithmetic() -> Any:
    context = decimal.getcontext()
    own, of_new = ((c.prec, c.rounding, c.Emin, c.Emax, dict(c.traps)) for c in (context, decimal.DefaultContext))
    return own, of_new


def _errors_of_warnings() -> Any:
    """Filters for all modules that make warnings errors; libraries that are imported late add filters of their own."""
    return [filtered for filtered in warnings.filters if filtered[0] == "error" and filtered[3] is None]


def _symbolic_arithmetic() -> Any:
    """SymPy's switches, which `accuracy` goes by, and the digits of mpmath below it, where they have been imported."""
    parameters, numeric = sys.modules.get("sympy.core.parameters"), sys.modules.get("mpmath")
    switches = dict(vars(parameters.global_parameters)) if parameters else _SWITCHES
    return switches, numeric.mp.prec if numeric else _PRECISION


def _arithmetic_of_arrays() -> Any:
    """What NumPy does about overflow, and the type and the device of torch's new tensors, where they are imported."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        getattr(numpy, "geterr", lambda: _FLOATING_POINT_ERRORS)(),
        str(getattr(torch, "get_default_dtype", lambda: _DTYPE)()),
        str(getattr(torch, "get_default_device", lambda: _DEVICE)()),
    )


def _umask() -> int:
    """The process's umask, which can be read by setting it only."""
    os.umask(before := os.umask(0o077))
    return before


_ONE, _LESS_THAN_A_STEP, _LEAST_NORMAL = 1.0, 2.0**-53 * 1.5, sys.float_info.min
"""Their sum, difference and half depend on the mode of the processor, which libraries may change."""

_SWITCHES, _PRECISION = {"evaluate": True, "distribute": True, "exp_is_pow": False}, 53
_FLOATING_POINT_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_DTYPE, _DEVICE = "torch.float32", "cpu"
"""Settings of SymPy, mpmath, NumPy and PyTorch as they are after the import."""


class _AuditHooks:
    """How many were added since this process has a hook of its own. Nobody can list them, or take one away again."""

    def __init__(self) -> None:
        self.num_added: int | None = None

    def count(self) -> None:
        """Count from now on; asked again it goes on counting."""
        if self.num_added is None:
            sys.addaudithook(self._see)
            self.num_added = 0

    def _see(self, event: str, _: tuple[Any, ...]) -> None:
        if event == "sys.addaudithook" and self.num_added is not None:
            self.num_added += 1


_audit_hooks = _AuditHooks()


def num_threads() -> int:
    """Those of the module `_thread`, too, which `threading` does not know."""
    return max(threading.active_count() - 1, _thread._count())


class Leftovers:
    """Compares a process with itself at the time this was made."""

    def __init__(self) -> None:
        _audit_hooks.count()
        self._before = {what: look() for what, look in _STATES.items()}
        self._environment, self._path = dict(os.environ), set(sys.path)
        self._whole, self._num_modules = [dict(vars(thing)) for thing in _WHOLE], len(sys.modules)
        self._num_files = len(os.listdir("/proc/self/fd"))

    def found(self) -> str | None:
        """What is not as it was; None when all is. Some 50 µs."""
        for what, look in _STATES.items():
            try:
                if look() != self._before[what]:
                    return what
            except Exception:
                return what
        for thing, before in zip(_WHOLE, self._whole, strict=True):
            if not before.items() <= vars(thing).items():
                return f"something of {thing.__name__} replaced"
        if len(sys.modules) < self._num_modules:
            return "modules taken out of sys.modules"
        if self._environment_changed():
            return "its environment changed"
        if not self._path <= set(sys.path):
            return "its module path shorter"
        if len(os.listdir("/proc/self/fd")) > self._num_files + MORE_FILES:
            return f"more than {MORE_FILES} files open"
        return "a child process" if _has_children() else None

    def _environment_changed(self) -> bool:
        """Variables of others may come on top."""
        now, before = dict(os.environ), self._environment
        return not before.items() <= now.items() or any(
            name.startswith(_READ_HERE) for name in now.keys() - before.keys()
        )


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


_STATES: dict[str, Callable[[], Any]] = {
    "signals handled in another way": lambda: [signal.getsignal(number) for number in _SIGNALS],
    "signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "another priority or other processors": lambda: (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)),
    "other limits": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "another recursion limit": sys.getrecursionlimit,
    "other standard streams": lambda: [(found.st_dev, found.st_ino) for found in map(os.fstat, (0, 1, 2))],
    "functions of Python replaced": lambda: [getattr(module, name) for module, name in _FUNCTIONS],
    "a closed stream": lambda: (sys.stdout.closed, sys.stderr.closed),
    "another working directory": os.getcwd,
    "a trace or a profile running": lambda: (sys.gettrace(), sys.getprofile()),
    "errors made of warnings": _errors_of_warnings,
    "another arithmetic of decimal numbers": _arithmetic,
    "another arithmetic of symbols": _symbolic_arithmetic,
    "an audit hook": lambda: _audit_hooks.num_added,
    "another limit for the digits of a number": sys.get_int_max_str_digits,
    "numbers rounded in another way": lambda: (
        _ONE + _LESS_THAN_A_STEP,
        _ONE - _LESS_THAN_A_STEP,
        _LEAST_NORMAL / 2 > 0.0,
    ),
    "another arithmetic of arrays": _arithmetic_of_arrays,
    "another mask for new files": _umask,
    "another locale": lambda: locale.setlocale(locale.LC_ALL),
    "another user": lambda: (os.geteuid(), os.getegid()),
    "another sys.executable": lambda: sys.executable,
    "the collection of garbage off": gc.isenabled,
    "a time limit for all sockets": socket.getdefaulttimeout,
    "another event loop policy": lambda: type(asyncio.get_event_loop_policy()),
    "an event loop running": lambda: asyncio._get_running_loop() is None,
}
"""What is left → what to look at."""
