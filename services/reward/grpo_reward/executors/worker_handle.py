"""The server's side of one worker process: a socket, the shared progress memory, and the watch over its time limit."""

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from pydantic_core import to_json

from grpo_proto import RewardScore

from .base import Chunk, InvalidParams
from .frames import LENGTH, PROGRESS, PROGRESS_BYTES

MAX_FRAME_BYTES = 512 * 2**20
"""Largest message from a worker, in bytes: no results are that large, but a reward can write to its worker's socket."""
START_LIMIT_S = 5.0
"""How long a worker may take until it has read a chunk, and, with `timeout_s` added, until it has begun an item."""

CLOSED_S = 1.0
"""How long a worker whose connection has ended may live on before it is killed."""
REPORT_LIMIT_S = 15.0
"""How long the fork server may take to report the end of a worker; a silent one is lost by then."""


class Refused(BaseModel):
    reward: str
    message: str


class WorkerMessage(BaseModel):
    """What a worker says; see `worker.py`."""

    hello: bool = False
    chunk: int = -1
    items: list[int] = []
    scores: list[RewardScore] = []
    seconds: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    refused: Refused | None = None
    unreadable: str | None = None
    leaving: str | None = None
    done: bool = False


@dataclass
class Ending:
    """How a worker's turn at a chunk ended. `item` is the one in work when it ended badly, −1 if none had begun.

    `unreadable`: the worker lives, and could not make out what it was to score. `unread`: it did not take up what it
    was given, so it was stopped before that.
    """

    kind: Literal["done", "leaving", "timeout", "death", "unreadable", "unread"]
    item: int = -1
    detail: str = ""


class WorkerHandle(asyncio.Protocol):
    """Waits for: messages, the end of the connection. Unblocked by: the event loop (`data_received`).

    `kill` asks the fork server to kill this worker. Raises OSError when there are no descriptors left.
    """

    def __init__(self, number: int, *, kill: Callable[[], None] = lambda: None):
        self.number, self.kill = number, kill
        self.retired = False
        self.idle = False
        self.exit_status: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Set when the fork server has collected it; to None when it was dropped together with the fork server."""
        with contextlib.ExitStack() as opened:
            self.ours, self.theirs = socket.socketpair()
            opened.callback(self.ours.close)
            opened.callback(self.theirs.close)
            self.progress_fd = os.memfd_create(f"grpo-reward-worker-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            opened.callback(os.close, self.progress_fd)
            os.ftruncate(self.progress_fd, PROGRESS_BYTES)
            # A reward that cut it off would end whoever reads it by SIGBUS.
            fcntl.fcntl(
                self.progress_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
            self._progress = mmap.mmap(self.progress_fd, PROGRESS_BYTES)
            opened.pop_all()
        self._inbox: asyncio.Queue[WorkerMessage | None] = asyncio.Queue()
        self._buffer = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._chunks = 0
        self._last_item = -1
        """What was in work when the connection was closed from here."""

    def ended(self, status: int | None) -> None:
        if not self.exit_status.done():
            self.exit_status.set_result(status)

    async def connect(self) -> None:
        self.ours.setblocking(False)
        self._connecting = asyncio.create_task(self._connect())
        # Neither cancelled nor closed in the middle: the event loop has its descriptor by then, and libuv ends the
        # process when somebody else closes that.
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self.ours)
        self._transport = transport

    def close_theirs(self) -> None:
        """The worker has its own copies by now."""
        self.theirs.close()
        if self.progress_fd >= 0:
            os.close(self.progress_fd)
            self.progress_fd = -1

    def close(self) -> None:
        """The worker sees its connection end."""
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.add_done_callback(self._abort)
        else:
            self.ours.close()
        self.close_theirs()
        if not self._progress.closed:
            self._last_item = self._in_work()[0]
            self._progress.close()

    def _abort(self, connecting: "asyncio.Task[None]") -> None:
        if not connecting.cancelled() and connecting.exception() is None and self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
            if end > MAX_FRAME_BYTES:
                self.close()  # a reward wrote to the worker's socket
                self.connection_lost(None)
                return
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            try:
                message = WorkerMessage.model_validate_json(body)
            except ValueError:
                # A reward wrote to the worker's socket: nothing from there can be believed any more.
                self.connection_lost(None)
                return
            self._inbox.put_nowait(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._inbox.put_nowait(None)

    async def hello(self) -> bool:
        """Wait until the worker has started; False when it died before."""
        message = await self._inbox.get()
        return message is not None and message.hello

    async def run(self, chunk: Chunk, items: list[int]) -> Ending:
        """Let the worker score `items` of `chunk`. Returns how that ended; the chunk has what came back.

        Raises InvalidParams. When it ends other than "done", or is cancelled, the worker must not be used again.
        """
        if self._transport is None:
            raise RuntimeError("connect() comes first")
        message = {
            "chunk": self._chunks + 1,
            "rewards": [{"name": spec.name, "params": spec.params} for spec in chunk.rewards],
            "samples": chunk.samples,
            "items": items,
            "step": chunk.step,
            "timeout_s": chunk.timeout_s,
            "turn_s": chunk.turn_s,
            "batch": chunk.batch,
            "eager": chunk.eager,
        }
        body = to_json(message)
        self._chunks += 1  # the worker counts as well
        if self._transport.is_closing():  # it died while it was idle, and the fork server has not said so yet
            return Ending("death", detail="it was dead already")
        self._transport.write(LENGTH.pack(len(body)) + body)
        sent = time.monotonic()
        while True:
            item, since = self._in_work()
            read = self._has_read()
            begun = sent + START_LIMIT_S if since is None else max(since, sent)
            limit = begun + (chunk.timeout_s if read else 0.0)
            # Not longer than one item may take: by then another item may be in work, with a limit of its own.
            patience_s = min(limit - time.monotonic(), chunk.timeout_s)
            try:
                # Not `wait_for`: before Python 3.12 it forgets that it was cancelled when an answer is there already.
                async with asyncio.timeout(max(patience_s, 0.001)):
                    answer = await self._inbox.get()
            except TimeoutError:
                # Read again: the memory is written without a lock, and the worker may just have begun another item.
                unchanged = self._has_read() == read and self._in_work() == (item, since)
                if time.monotonic() >= limit and self._inbox.empty() and unchanged:
                    return Ending("timeout" if read else "unread", item)
                continue
            if answer is None:
                return Ending("death", self._in_work()[0], await self._cause_of_death())
            ending = self._take(chunk, items, answer)
            if ending is not None:
                return ending

    def _take(self, chunk: Chunk, items: list[int], answer: WorkerMessage) -> Ending | None:
        if answer.unreadable is not None:
            return Ending("unreadable", detail=answer.unreadable)
        if answer.chunk != self._chunks:
            return Ending("death", detail="it answered another chunk than it was given")
        if answer.refused is not None:
            raise InvalidParams(answer.refused.reward, answer.refused.message)
        if chunk.batch and answer.scores:
            if len(answer.scores) != len(chunk.scores):
                return Ending("death", 0, "its results do not match the samples")
            chunk.scores = list(answer.scores)
        elif not chunk.batch:
            if len(answer.scores) != len(answer.items) or not set(answer.items) <= set(items):
                return Ending("death", detail="its results do not match the samples")
            for item, score in zip(answer.items, answer.scores, strict=True):
                chunk.scores[item] = score
        chunk.spend(answer.seconds)
        if answer.leaving is not None:
            return Ending("leaving", detail=answer.leaving)
        return Ending("done") if answer.done else None

    def _in_work(self) -> tuple[int, float | None]:
        """The item in work, and since when; (−1, None) before the first of this chunk and after the last."""
        if self._progress.closed:
            return self._last_item, None
        number, item, since = PROGRESS.unpack_from(self._progress)
        return (item, since) if number == self._chunks and item >= 0 else (-1, None)

    def _has_read(self) -> bool:
        """Whether the worker has taken up the chunk that it was given last."""
        return self._progress.closed or PROGRESS.unpack_from(self._progress)[0] == self._chunks

    async def _cause_of_death(self) -> str:
        """Wait until the fork server has reported the worker's end, or is lost with all workers: that decides who is to
        blame. A keeper short of processor time closes its socket seconds after the deaths of both."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_S):
                status = await asyncio.shield(self.exit_status)
            if status is not None:
                return f"it was killed by signal {-status}" if status < 0 else f"it exited with status {status}"
        self.kill()  # one that only closed its connection lives on
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_LIMIT_S):
                await asyncio.shield(self.exit_status)
        return "it closed its connection"
