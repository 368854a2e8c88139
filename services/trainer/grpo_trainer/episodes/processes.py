"""The trainer's side of the nursery: start processes of episodes, call them, end them.

Waits for: the nursery's packets and the frames of each process, each with a deadline. Unblocked by: those, the end of
a process, and the end of the nursery, with which all its processes have ended; the next spawn starts another. A nursery
that stands still is ended.
"""

import asyncio
import itertools
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_proto.api_token import TOKEN_VARIABLE

from ..errors import UsageError
from .frames import HEADER, PACKET_BYTES, Frame, FrameError, length_of, opened, packed, packet, unpacked
from .kinship import kill_group

log = logging.getLogger(__name__)

GRACE_S = 3.0
"""Time for a process that was interrupted to say so, before it is killed."""
STARTED_S = 30.0
"""A nursery that has said nothing for this long, while a fork or the start of a program is waited for, stands still: it
answers each in turn."""
POLL_S = 0.01
DIED = "the process that imports the files of episodes died"


class EpisodeProcessError(Exception):
    """The process of an episode cannot go on: it died, ran late, or sent what is no answer. It is ended."""


class LateProcessError(EpisodeProcessError):
    """A call did not return, and could not be interrupted."""


class CallFailedError(Exception):
    """The user's code raised, or ran late and was interrupted (`late`). The process goes on."""

    def __init__(self, message: str, *, late: bool):
        super().__init__(message)
        self.late = late


@dataclass(frozen=True)
class Exit:
    """`status`: the exit status, negative for a signal; None when the nursery died first."""

    status: int | None
    output: str = ""
    last_line: str = ""

    def __str__(self) -> str:
        how = "with the process that forked it" if self.status is None else f"with status {self.status}"
        said = f"; its last words: {self.output}" if self.output else ""
        return f"the process ended {how}{said}"


class EpisodeProcess:
    """The process of one episode. Use it as an asynchronous context manager: it ends with all that it has started."""

    def __init__(self, nursery: "Nursery", number: int):
        self.nursery, self.number = nursery, number
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self._calling = False

    async def __aenter__(self) -> "EpisodeProcess":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def call(self, name: str, *, wait_s: float, **arguments: Any) -> Any:
        """Call the user's code; wait for `wait_s` and a grace.

        Raises CallFailedError when it raised or was interrupted; EpisodeProcessError when the process is gone,
        LateProcessError when it had to be killed.
        """
        if self.reader is None or self.writer is None:
            raise RuntimeError("a program takes no calls")
        self._calling = True
        answering = asyncio.ensure_future(self._exchange({"call": name, **arguments}))
        either: list[asyncio.Future[Any]] = [answering, self.exited]
        try:
            await asyncio.wait(either, timeout=wait_s + GRACE_S, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not self.exited.done():
                self.kill()
                raise LateProcessError(f"{name} did not return within {wait_s:g} s and could not be interrupted")
            if not answering.done():
                await asyncio.wait({answering}, timeout=GRACE_S)  # the answer may be on its way
            answer = answering.result() if answering.done() else None
        except (FrameError, OSError, asyncio.IncompleteReadError) as error:
            self.kill()
            await asyncio.wait({self.exited}, timeout=GRACE_S)
            why = str(self.exited.result()) if self.exited.done() else f"its answer cannot be read: {error}"
            raise EpisodeProcessError(why) from error
        finally:
            answering.add_done_callback(_forget)
            answering.cancel()
            self._calling = False
            if self.exited.done():
                self.writer.close()
        if answer is None:
            raise EpisodeProcessError(str(self.exited.result()))
        if "error" in answer:
            raise CallFailedError(str(answer["error"]), late=bool(answer.get("late")))
        return answer.get("ok")

    async def _exchange(self, request: Frame) -> Frame:
        if self.reader is None or self.writer is None:
            raise RuntimeError("a program takes no calls")
        self.writer.write(packed(request))
        await self.writer.drain()
        length = length_of(await self.reader.readexactly(HEADER.size))
        return unpacked(await self.reader.readexactly(length))

    def ended(self, exited: Exit) -> None:
        """Called by the nursery, once. The channel of a call stays open: its answer may be on its way."""
        self.exited.set_result(exited)
        if self.writer is not None and not self._calling:
            self.writer.close()

    def kill(self) -> None:
        """End the process and all below it; returns at once. A process that has ended is left alone."""
        if self.writer is not None:
            self.writer.close()
        self.nursery.kill(self.number)


class Nursery:
    """Starts processes of episodes. Use it as an asynchronous context manager, in one event loop.

    Args:
        environments, schedulers, factories, tools, rewards: what to import, each FILE.py:NAME.
        startup_timeout_s: limit for the imports.
    """

    def __init__(
        self,
        *,
        environments: Sequence[str] = (),
        schedulers: Sequence[str] = (),
        factories: Sequence[str] = (),
        tools: Sequence[str] = (),
        rewards: Sequence[str] = (),
        startup_timeout_s: float = 300.0,
    ):
        self.asked = {
            "environments": list(environments), "schedulers": list(schedulers), "factories": list(factories),
            "tools": list(tools), "rewards": list(rewards),
        }  # fmt: skip
        self.startup_timeout_s = startup_timeout_s
        self._numbers = itertools.count()
        self._living: dict[int, EpisodeProcess] = {}
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._heard_s = 0.0
        """When the nursery said something last, on the event loop's clock."""

    async def __aenter__(self) -> "Nursery":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it unless it runs. Raises UsageError when a file cannot be imported, or not in time."""
        async with self._starting:
            if self._listening is not None and self._control is None:
                await asyncio.wait({self._listening})  # the one before is ending
            if self._listening is None or self._listening.done():
                await self._start()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        # The order of a set of texts must not be another one in each run; many processes share the cores.
        environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | environment
        try:
            command = [sys.executable, "-m", "grpo_trainer.episodes.nursery", str(theirs.fileno())]
            # In a session of its own: what kills the trainer's group must leave it the time to end all below it.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._control = ours
        ours.send(packet({"import": self.asked}))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.startup_timeout_s):
                body = await loop.sock_recv(ours, PACKET_BYTES)
        except OSError as error:
            await self._end_process()
            if not isinstance(error, TimeoutError):
                raise UsageError(DIED) from error
            raise UsageError(
                f"episodes: importing the files took longer than startup_timeout_s {self.startup_timeout_s:g}"
            ) from error
        answer = opened(body) if body else {"failed": DIED}
        if "failed" in answer:
            await self._end_process()
            raise UsageError(answer["failed"])
        self._heard_s = loop.time()
        self._listening = asyncio.create_task(self._listen(ours))

    async def stop(self) -> None:
        """End all processes: closing the socket ends the nursery, which ends all that it has started."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        await self._end_process()
        self._all_ended()

    async def _end_process(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is None:
            return
        try:
            async with asyncio.timeout(2 * GRACE_S):
                await self._process.wait()
        except TimeoutError:
            kill_group(self._process.pid)
            # One that the kernel holds, as for a file of a server that is gone, ends when it is let go.
            await asyncio.wait({asyncio.ensure_future(self._process.wait())}, timeout=GRACE_S)
        self._process = None

    # --- processes -----------------------------------------------------------------------------------------------

    async def fork(self, kind: Frame, *, seed: int, log_file: Path) -> EpisodeProcess:
        """Fork the process of an episode; `kind`: what plays it, as `plays.py` takes it.

        Raises EpisodeProcessError when that fails.
        """
        ours, theirs = socket.socketpair()
        try:
            child = await self._spawn({"kind": kind, "seed": seed, "log": str(log_file)}, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child.reader, child.writer = await asyncio.open_connection(sock=ours)
        return child

    async def program(
        self, argv: Sequence[str], *, env: Mapping[str, str], stdin: Path, log_file: Path
    ) -> EpisodeProcess:
        """Start a program. Raises EpisodeProcessError when that fails, as for one that is not there."""
        message = {"argv": list(argv), "env": dict(env), "stdin": str(stdin), "log": str(log_file)}
        return await self._spawn(message, [])

    async def _spawn(self, message: Frame, descriptors: list[int]) -> EpisodeProcess:
        await self.start()
        control = self._control
        if control is None:
            raise EpisodeProcessError("the process that forks those of episodes has ended")
        loop = asyncio.get_running_loop()
        child, asked_s = EpisodeProcess(self, next(self._numbers)), loop.time()
        self._living[child.number] = child
        either: list[asyncio.Future[Any]] = [child.pid, child.exited]
        body, sent = packet({"spawn": child.number, **message}), False
        try:
            while not (child.pid.done() or child.exited.done()):
                left_s = max(asked_s, self._heard_s) + STARTED_S - loop.time()
                if left_s <= 0:
                    self._end_silent(control)
                sent = sent or _sent(control, body, descriptors)
                # Without room, look again: it reads as soon as it has forked those before.
                wait_s = max(left_s, POLL_S) if sent else POLL_S
                await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            child.kill()
            raise
        if not child.pid.done():
            exited = child.exited.result()
            raise EpisodeProcessError(f"the process of the episode could not be started: {exited.output or exited}")
        return child

    def _end_silent(self, control: socket.socket) -> None:
        """End the nursery at `control`, which stands still: so would every later episode."""
        if control is not self._control or self._process is None:
            return
        log.warning("the process that forks those of episodes has said nothing for %g s, and is ended", STARTED_S)
        self._heard_s = asyncio.get_running_loop().time()  # once is enough
        kill_group(self._process.pid)
        control.shutdown(socket.SHUT_RDWR)  # what a file has forked at its import may hold the other end

    def kill(self, number: int) -> None:
        if number not in self._living or self._control is None:
            return
        try:
            self._control.send(packet({"kill": number}))
        except BlockingIOError:
            child = self._living[number]
            if child.pid.done():
                kill_group(child.pid.result())
        except OSError:
            pass  # the nursery has ended, and its children with it

    async def _listen(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while body := await loop.sock_recv(control, PACKET_BYTES):
                self._heard_s = loop.time()
                self._obey(opened(body))
        except OSError as error:
            log.warning("the process that forks those of episodes is gone: %s", error)
        log.warning("the process that forks those of episodes has ended; the next episode starts another")
        for child in self._living.values():
            if child.pid.done():
                kill_group(child.pid.result())
        await self._end_process()
        self._all_ended()

    def _obey(self, message: Frame) -> None:
        if "started" in message and (child := self._living.get(message["started"])) is not None:
            child.pid.set_result(message["pid"])
        elif "exited" in message and (child := self._living.pop(message["exited"], None)) is not None:
            child.ended(Exit(message["status"], message["output"], message["last_line"]))

    def _all_ended(self) -> None:
        for child in self._living.values():
            child.ended(Exit(None))
        self._living.clear()


def _sent(control: socket.socket, body: bytes, descriptors: Sequence[int]) -> bool:
    """Send to the nursery; False when its socket has no room. Of its end every process that it should start is told."""
    try:
        socket.send_fds(control, [body], list(descriptors))
    except BlockingIOError:
        return False
    except OSError:
        pass  # it has ended: who tries again at once must find the next one
    return True


def _forget(done: "asyncio.Future[Any]") -> None:
    """Take the error of an exchange that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
