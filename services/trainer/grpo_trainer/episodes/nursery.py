"""The process that imports the users' files once, and of which each episode's process is forked.

`python -m grpo_trainer.episodes.nursery FD`, started by `processes.py`. It listens to one socket, the trainer's:

    {"import": {"tools": ["FILE.py:NAME", …], …}}         → {"ready": true} or {"failed": text}
    {"spawn": id, "kind": …, "seed": n, "log": path} and a channel         fork; `child.py` answers on the channel
    {"spawn": id, "argv": […], "env": {…}, "stdin": path, "log": path}     start a program
    {"kill": id}                                          end it, with all that it has started
                                                          → {"started": id, "pid": n}, then
                                                          → {"exited": id, "status": n, "output": …, "last_line": …}

Nothing outlives an episode: its process leads a group and is the subreaper of all below it, so that what it leaves
behind falls to the nursery, which kills every child that it does not know. Nothing outlives the trainer: the end of
the socket ends all. What a file starts while it is imported lives as long as the nursery.
"""

import contextlib
import gc
import inspect
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import MethodType
from typing import Any

from ..errors import TrainerError, UsageError
from .child import serve
from .frames import PACKET_BYTES, Frame, opened, packet
from .kinship import children_of, die_with_parent, keep_what_children_leave, kill, kill_group, live_on
from .output import Output

END_S = 5.0
"""How long the nursery tries to end all that is left when the trainer is gone."""
TICK_S = 0.1
LOOKS = 100
"""How often to look for what an episode has left behind, before other work goes on."""
NOT_STARTED = 127


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides when this process ends
    die_with_parent()  # an import may hang and never read the socket
    keep_what_children_leave()
    asked = control.recv(PACKET_BYTES)
    if not asked:
        return
    try:
        parts = load(**opened(asked)["import"])
    except TrainerError as error:
        control.send(packet({"failed": str(error)[:8000]}))
        return
    live_on()
    gc.collect()
    gc.freeze()  # a collection in a forked process would write to, and so copy, every page of what is imported here
    control.send(packet({"ready": True}))
    Nursery(control, parts).run()


def load(
    environments: list[str], schedulers: list[str], factories: list[str], tools: list[str], rewards: list[str]
) -> dict[str, Any]:
    """Import what the run file names. Raises UsageError for what is not there, or cannot play an episode."""
    names = [*environments, *schedulers, *factories, *tools, *rewards]
    if not names:
        return {}
    import numpy as np  # so that each episode can seed it

    from grpo_proto.swift_stand_in import stand_in

    from ..extension import named
    from . import reward_functions, swift_plays
    from .messages import EnvironmentFault
    from .plays import tool_methods
    from .tools import schema_of

    stand_in()
    if factories:
        schema_of(_any_tool)  # the first schema imports transformers: here once, not in the process of each episode
    np.random.seed(0)
    parts: dict[str, Any] = {}
    for section, chosen, methods in (
        ("environment", environments, ("reset", "step")),
        ("multi_turn_scheduler", schedulers, ("step",)),
        ("environment_factory", factories, ("reset",)),
        ("tools", tools, ()),
        ("reward_funcs", rewards, ()),
    ):
        for name in chosen:
            found: Any = named(name, {}, setting=f"episodes.{section}")
            parts[name] = found
            lacking = [method for method in methods if not callable(getattr(found, method, None))]
            if isinstance(found, type) and lacking:
                raise UsageError(f"episodes.{section}: {name} has no method {lacking[0]}")
    of_classes = [
        ("environment_factory", _as_bound(parts[name], method))
        for name in factories
        if isinstance(parts[name], type)
        for method in tool_methods(parts[name])
    ]
    for section, tool in [*(("tools", parts[name]) for name in tools), *of_classes]:
        try:
            schema_of(tool)
        except EnvironmentFault as error:
            hint = "a tool needs a type for each argument, and a docstring with a line for each under Args:"
            raise UsageError(f"episodes.{section}: {error}", hint=hint) from error
    for section, chosen, problem_of in (
        ("multi_turn_scheduler", schedulers, swift_plays.problem_of),
        ("reward_funcs", rewards, reward_functions.problem_of),
    ):
        for name in chosen:
            if (problem := problem_of(parts[name])) is not None:
                raise UsageError(f"episodes.{section}: {name} {problem}")
    return parts


def _as_bound(kind: type, name: str) -> Any:
    """The method as an instance would have it, before there is one."""
    is_static = isinstance(inspect.getattr_static(kind, name), staticmethod)
    return getattr(kind, name) if is_static else MethodType(getattr(kind, name), object())


def _any_tool(text: str) -> str:
    """Return it.

    Args:
        text: anything
    """
    return text


class Living:
    """The process of one episode."""

    def __init__(self, number: int, pid: int, output: Output):
        self.number, self.pid, self.output = number, pid, output


class Nursery:
    """Waits for the trainer's messages, the output of its children and their deaths."""

    def __init__(self, control: socket.socket, parts: dict[str, Any]):
        self.control, self.parts = control, parts
        self.living: dict[int, Living] = {}
        self.pid = os.getpid()
        self.kept = children_of(self.pid)
        """Started by a user's file at its import."""
        self.strangers = False
        """Whether something that an episode has left behind may still be there."""
        self.selector = selectors.PollSelector()  # it has no descriptor that children would inherit
        self.woken, self.wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        self.selector.register(self.control, selectors.EVENT_READ)
        self.selector.register(self.woken, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        going_on = True
        while going_on:
            busy = bool(self.living) or self.strangers
            for key, _ in self.selector.select(TICK_S if busy else None):
                if key.fileobj is self.control:
                    going_on = self.obey()
                elif key.fileobj == self.woken:
                    os.read(self.woken, 4096)
                else:
                    key.data.read()
            self.reap()
        self.end()

    def obey(self) -> bool:
        """Do what the trainer asks; False when it is gone."""
        try:
            body, descriptors, _, _ = socket.recv_fds(self.control, PACKET_BYTES, 1)
        except ConnectionError:
            return False
        if not body:
            return False
        message = opened(body)
        if "spawn" in message:
            self.spawn(message, descriptors)
        elif "kill" in message:
            for child in self.living.values():
                if child.number == message["kill"]:
                    kill_group(child.pid)
        return True

    # --- beginning -----------------------------------------------------------------------------------------------

    def spawn(self, message: Frame, descriptors: list[int]) -> None:
        number, output = message["spawn"], Output(Path(message["log"]))
        try:
            if "argv" in message:
                pid = self.start_program(message, output)
            else:
                pid = self.fork(message, descriptors[0], output)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            output.close()
            self.say({"exited": number, "status": NOT_STARTED, "output": str(error)[:2000], "last_line": ""})
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        output.started()
        for pipe in output.pipes:
            self.selector.register(pipe.fileno(), selectors.EVENT_READ, pipe)
        self.living[pid] = Living(number, pid, output)
        self.say({"started": number, "pid": pid})

    def start_program(self, message: Frame, output: Output) -> int:
        out, err = output.writers
        with Path(message["stdin"]).open("rb") as stdin:
            program = subprocess.Popen(  # noqa: S603 - the run file names it
                message["argv"],
                stdin=stdin,
                stdout=out,
                stderr=err,
                env=message["env"],
                start_new_session=True,
                preexec_fn=_as_program,
            )
        program.returncode = 0  # it is reaped by `reap`; this keeps subprocess from doing that
        return program.pid

    def fork(self, message: Frame, channel: int, output: Output) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            self.become_child(channel, output)
            serve(socket.socket(fileno=os.dup(channel)), self.parts, message["kind"], seed=message["seed"])
            status = 0
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
                sys.stderr.flush()
        finally:
            os._exit(status)

    def become_child(self, channel: int, output: Output) -> None:
        die_with_parent()
        if os.getppid() != self.pid:  # it died before the line above
            os._exit(1)
        os.setsid()
        keep_what_children_leave()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        out, err = output.writers
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        output.close()
        for child in self.living.values():
            child.output.close()
        for descriptor in (self.woken, self.wake):
            os.close(descriptor)
        self.control.close()

    # --- ending --------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Tell the trainer of each child that has ended, and kill what it has left behind."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self.living:
                kill_group(pid)
                ended.append((self.living.pop(pid), os.waitstatus_to_exitcode(status)))
        if ended or self.strangers:
            self.kill_strangers()
        for child, exit_status in ended:
            for pipe in child.output.pipes:
                self.selector.unregister(pipe.fileno())
            child.output.drain()
            child.output.close()
            said = {"output": child.output.tail(2000), "last_line": child.output.last_line()}
            self.say({"exited": child.number, "status": exit_status, **said})

    def kill_strangers(self) -> None:
        """Kill every child that is no episode's: their parents, which were episodes, are dead.

        Look again at once: the children of a stranger fall to us when it is dead, and it may have forked before.
        """
        for _ in range(LOOKS):
            strangers = children_of(self.pid) - set(self.living) - self.kept
            for pid in strangers:
                kill(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not strangers:
                break
        self.strangers = bool(strangers)

    def end(self) -> None:
        for pid in self.living:
            kill_group(pid)
        until_s = time.monotonic() + END_S
        while time.monotonic() < until_s and (left := children_of(self.pid)):
            for pid in left:
                kill(pid)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.01)

    def say(self, message: Frame) -> None:
        with contextlib.suppress(ConnectionError):  # the trainer is gone, as the next look at the socket shows
            self.control.send(packet(message))


def _as_program() -> None:
    """Runs in the child before the program."""
    die_with_parent()
    keep_what_children_leave()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
