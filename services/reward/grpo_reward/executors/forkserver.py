"""The process that imports rewards once and forks workers from itself. It listens to one socket, its parent's.

`python -m grpo_reward.executors.forkserver FD MEMORY_BYTES`, started by `process.py`, has the built-in rewards; with
`plugins [PLUGIN …]` after that, those of installed packages and of plugin files, and no others.

From the server, one JSON message per packet: `{"spawn": id}` with the worker's socket and progress memory as file
descriptors, `{"kill": id}`, `{"ping": n}`. To it: `{"importing": source}` before each plugin and reward model,
`{"reward": …}` for each reward, `{"notice": text}` for the operator, then `{"ready": true}` or `{"failed": message}`;
`{"exited": id, "status": n}`, `{"unspawned": id, "reason": …}`, `{"pong": n}`.

Nothing outlives it. It is the child of a keeper, which sees the end of the server (the closed socket) and of the fork
server, also while a plugin is imported and also by SIGKILL, and then kills all there is. Both are subreapers: what a
killed worker leaves behind falls to the fork server, what that one leaves behind to the keeper. Processes that a plugin
starts at its import (a `multiprocessing.Manager`, a helper program) live as long as the fork server does.
"""

import contextlib
import ctypes
import gc
import mmap
import os
import select
import selectors
import signal
import socket
import sys
import traceback
import warnings
from json import dumps, loads
from os import fork, killpg, waitpid  # by name: guards for untrusted code, put up at a plugin's import, replace them
from pathlib import Path
from typing import Any, NoReturn, TypedDict, cast

from pydantic import TypeAdapter

from ..author import Reward
from ..params_schema import params_schema
from ..plugin import PluginError, forks_end_here
from ..registry import built_in_rewards, plugin_rewards
from ..sandbox.run import START_S, SandboxError, barriers_here, refusal_of
from .descendants import children, go_on, has_ended, kill, kill_group
from .environment import give_up_reading_other_processes
from .frames import PACKET_BYTES, PROGRESS_BYTES
from .worker import Worker, limit_resources, quiet_standard_streams

MAX_DOCUMENTATION_CHARS, MAX_FAILURE_CHARS = 16_000, 4_000
SANDBOXED = "code"
SANDBOX_CHECK_S = START_S + 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
_STRAY = signal.valid_signals() - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, *_FAULTS}
"""Signals that end or stop a process that does not ask for them. A reward may send one to its parent by mistake."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    quiet_standard_streams()
    give_up_reading_other_processes()
    keeper = os.getpid()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if (pid := fork()) > 0:
        keep(control, pid)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # which a fork does not inherit
    if os.getppid() != keeper:  # it died before the line above
        os._exit(1)
    os.setsid()
    # Whatever is forked from here, by a plugin or by us: the server hears this process, and sees its end, only.
    os.register_at_fork(after_in_child=control.close)
    with forks_end_here():
        try:
            plugins = [Path(path) for path in sys.argv[4:]] if sys.argv[3:] else None
            if (rewards := load(control, plugins)) is not None:
                ForkServer(control, rewards, memory_bytes=int(sys.argv[2])).run()
        except Exception:
            with contextlib.suppress(Exception):  # a plugin may have left no standard error
                traceback.print_exc()
        finally:
            if os.getppid() == keeper:
                os._exit(0)  # without what plugins have registered for the end


def keep(control: socket.socket, pid: int) -> NoReturn:
    """Wait until the server or the fork server `pid` is gone, however it went, and end what is left of the latter.

    When the fork server is stopped (SIGSTOP), it goes on.

    Nothing of a plugin runs here, so nothing but a kill of this very process keeps it from that.
    """
    ignore_signals()
    (woken, _), poll = notice_children(), select.poll()
    poll.register(woken, select.POLLIN)  # not a pidfd: Linux 4.18 is still about
    poll.register(control, 0)  # it is not read here: only its end is told
    while not has_ended(pid) and control.fileno() not in dict(poll.poll()):
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        go_on(pid)
    kill_group(pid)
    kill_everything()
    os._exit(0)


def ignore_signals() -> dict[int, Any]:
    """The server decides when this process ends. Returns what was done with each signal before."""
    return {number: signal.signal(number, signal.SIG_IGN) for number in _STRAY}


def notice_children() -> tuple[int, int]:
    """A pipe, which nobody can shut down: its first end can be read whenever a child has ended or was stopped."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


def load(control: socket.socket, plugins: list[Path] | None) -> dict[str, Reward] | None:
    """Import the rewards, built-in ones without `plugins`, and tell the server of each.

    Returns None when that failed, as the server has been told, too.
    """
    check = SandboxCheck() if plugins is None else None
    # Of a pattern in somebody's params, a line for each of its characters.
    warnings.filterwarnings("ignore", "Possible ", FutureWarning)

    def importing(source: str) -> None:
        _say(control, {"importing": source[:MAX_FAILURE_CHARS]})

    gc.disable()  # while all is imported it finds nothing, and takes a tenth of a second for that
    try:
        if plugins is None:
            rewards = built_in_rewards(importing)
        else:
            rewards = plugin_rewards(
                plugins, lambda text: _say(control, {"notice": text[:MAX_FAILURE_CHARS]}), importing
            )
        state = check.answer() if check is not None else SandboxState(unavailable=None, notice=None)
        for reward in rewards.values():
            described = describe(reward, unavailable=state["unavailable"] if reward.name == SANDBOXED else None)
            _say(control, {"reward": checked_size(described | {"of_plugin": plugins is not None})})
    except (PluginError, TypeError) as error:
        _say(control, {"failed": str(error)[:MAX_FAILURE_CHARS]})
        return None
    if state["notice"]:
        _say(control, {"notice": state["notice"]})
    # What plugins may have left behind for those that come after them.
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    socket.setdefaulttimeout(None)
    gc.freeze()  # the collector of a worker then leaves the shared pages alone
    gc.enable()
    _say(control, {"ready": True})
    return rewards


class SandboxState(TypedDict):
    """Of the sandbox of `code`: why there is none, and what the operator should know of it."""

    unavailable: str | None
    notice: str | None


class SandboxCheck:
    """`sandbox_state` in a process beside the imports, forked before them.

    Not in a thread: a plugin that forks meanwhile would keep copies of the thread's pipes open, and it would wait.
    """

    def __init__(self) -> None:
        parent = os.getpid()
        self._answer, write = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            try:
                _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == parent:
                    os.write(write, dumps(sandbox_state()).encode())
            finally:
                os._exit(0)
        os.close(write)

    def answer(self) -> SandboxState:
        """Waits for it; the process is gone afterwards."""
        poll = select.poll()
        poll.register(self._answer, select.POLLIN)
        body = os.read(self._answer, PACKET_BYTES) if poll.poll(SANDBOX_CHECK_S * 1000) else b""
        os.close(self._answer)
        with contextlib.suppress(ChildProcessError):  # a plugin has waited for every child there was
            if not body:
                kill(self._pid)
            waitpid(self._pid, 0)
        if body:
            return cast(SandboxState, loads(body))
        return _no_sandbox("the check of its sandbox gave no answer")


def sandbox_state() -> SandboxState:
    """Both None when the sandbox is whole."""
    try:
        barriers = barriers_here()
    except SandboxError as error:
        return _no_sandbox(str(error))
    if (refusal := refusal_of(barriers)) is not None:
        return _no_sandbox(refusal)
    if barriers.open:
        given_up = f"the sandbox of the reward code is given up: open to programs are {', '.join(barriers.open)}"
        return {"unavailable": None, "notice": given_up[:MAX_FAILURE_CHARS]}
    parts = "; ".join(barriers.missing)
    notice = (
        f"the sandbox of the reward code has fewer layers here, all it closes is closed: {parts}" if parts else None
    )
    return {"unavailable": None, "notice": notice and notice[:MAX_FAILURE_CHARS]}


def _no_sandbox(reason: str) -> SandboxState:
    reason = reason[: MAX_FAILURE_CHARS // 2]
    return {"unavailable": reason, "notice": f"the reward code is unavailable: {reason}"}


def describe(reward: Reward, *, unavailable: str | None = None) -> dict[str, Any]:
    """What `LoadedReward` holds. Raises PluginError when the params have no JSON schema."""
    try:
        schema = params_schema(reward.params)
    except Exception as error:
        raise PluginError(f"reward {reward.name}: its params have no JSON schema: {error}") from error
    return {
        "description": {
            "name": reward.name,
            "documentation": reward.documentation[:MAX_DOCUMENTATION_CHARS],
            "params_schema": schema,
            "columns": reward.required_columns,
            "code_hash": reward.code_hash,
            "batch": reward.batch,
            "unavailable": unavailable,
        },
        "fields": sorted(set(reward.fields.values())),
        "required_fields": reward.required_fields,
        "columns": list(reward.columns),
        "text_columns": [name for name, check in reward.columns.items() if check and _is_text(check)],
        "all_columns": reward.takes_all_columns,
        "takes_step": "step" in reward.context,
    }


def _is_text(check: TypeAdapter[Any]) -> bool:
    """Whether it takes text and no number. A validator before the text may make one of a number."""
    schema: Any = check.core_schema
    inner = schema["schema"] if schema["type"] == "function-before" else schema
    if inner["type"] != "str":
        return False
    try:
        check.validate_python(1)
    except Exception:
        return True
    return False


def checked_size(described: dict[str, Any]) -> dict[str, Any]:
    """Raises PluginError for a reward that cannot be told to the server."""
    size = len(dumps({"reward": described}))
    if size > PACKET_BYTES:
        description = described["description"]
        raise PluginError(
            f"reward {description['name']}: its description has {size} bytes of JSON, at most {PACKET_BYTES};"
            f" the schema of its params has {len(dumps(description['params_schema']))}"
        )
    return described


def _say(control: socket.socket, message: dict[str, object]) -> None:
    control.send(dumps(message).encode())


class ForkServer:
    """Waits for its parent's messages and its children's deaths."""

    def __init__(self, control: socket.socket, rewards: dict[str, Reward], memory_bytes: int):
        self._control, self._rewards, self._memory_bytes = control, rewards, memory_bytes
        self._workers: dict[int, int] = {}  # process id → worker id
        self._handlers: dict[int, Any] = {}
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None
        self._sessions = {os.getsid(0)} | {child.session for child in children()}
        """Our session, and those plugins started at import on purpose; a worker's children are in its or their own."""

    def run(self) -> None:
        self._handlers = ignore_signals()
        self._pipe = woken, _ = notice_children()
        selector = selectors.PollSelector()  # has no descriptor, which workers would have, too
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    os.read(woken, 4096)
                self._reap()
                if self._control in ready and not self._obey():
                    break
        signal.set_wakeup_fd(-1)  # children go on dying

    def _obey(self) -> bool:
        """Do what the server says; False when it is gone."""
        body, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
        if not body:
            return False
        message = loads(body)
        if "spawn" in message:
            self._spawn(message["spawn"], descriptors)
        elif "kill" in message:
            for pid, worker in self._workers.items():
                if worker == message["kill"]:
                    kill_group(pid)
        elif "ping" in message:
            _say(self._control, {"pong": message["ping"]})
        return True

    def _spawn(self, worker: int, descriptors: list[int]) -> None:
        try:
            pid = fork()
        except OSError as error:
            pid = -1
            _say(self._control, {"unspawned": worker, "reason": str(error)})
        if pid == 0:
            status = 70
            try:
                self._become_worker(descriptors)
                status = 0
            except (OSError, MemoryError) as error:  # a limit, or a reward has done something to its socket
                print(f"a worker cannot go on: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            except BaseException:
                traceback.print_exc()  # a fault of ours: rewards have their own handler
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self._workers[pid] = worker
            self._sessions.discard(pid)  # the number of one that is over

    def _become_worker(self, descriptors: list[int]) -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._pid:  # it died before the line above
            return
        os.setsid()
        signal.set_wakeup_fd(-1)  # asyncio has done that, where it is imported, since Python 3.12
        for descriptor in self._pipe or ():
            os.close(descriptor)
        for number, handler in self._handlers.items():  # None: not Python's
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for changed in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(changed, signal.SIG_DFL)
        # A daemon that a reward starts then falls to the worker, which sees it as left behind.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._control.close()
        limit_resources(self._memory_bytes)
        sock = socket.socket(fileno=descriptors[0])
        with mmap.mmap(descriptors[1], PROGRESS_BYTES) as progress:
            os.close(descriptors[1])
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                Worker(sock, progress, self._rewards).run()

    def _reap(self) -> None:
        """Collect the dead, tell the server which worker it was, and kill what it left."""
        any_worker = False
        while True:
            try:
                pid, status = waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            worker = self._workers.pop(pid, None)
            if worker is not None:
                any_worker = True
                kill_group(pid)
                _say(self._control, {"exited": worker, "status": os.waitstatus_to_exitcode(status)})
        if any_worker:
            for child in children():
                if child.pid not in self._workers and child.session not in self._sessions:
                    kill(child.pid)


def kill_everything() -> None:
    """This process, too. First all children, until none is left: killing one may hand its children to this process."""
    for child in children():
        kill_group(child.pid)
    while True:
        for child in children():
            kill(child.pid)
        try:
            waitpid(-1, 0)
        except ChildProcessError:
            break
    # What a plugin started at its import may have been adopted by another, or be starting anew just now.
    killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
