"""Warm worker processes on this machine.

A fork server has the rewards imported and forks workers from itself in milliseconds. A worker that is late with an
item, or has died, is replaced; only what it was lost for has `timeout` or `error` (`blame.py`), the rest of its chunk
goes to the next worker.
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic_core import PydanticSerializationError

from .base import Chunk, ExecutorUnavailable, ForkServerDied, InvalidParams, LoadedReward
from .blame import Blame
from .descendants import MARK, end, kill_tree
from .environment import worker_environment
from .frames import PACKET_BYTES
from .loading import Loading
from .worker_handle import WorkerHandle

log = logging.getLogger(__name__)
notices = log.getChild("notices")

REPLACEMENT_S = 2.0
"""How long requests wait for a worker when all have gone, before they are refused."""
LOSSES_S = 60.0
LOSS_PAUSES_S = (0.0, 0.0, 0.0, 1.0, 4.0, 16.0)
"""How long the fork server stays away when it was lost once, twice and so on within LOSSES_S."""
SPAWN_BACKOFF_S = (0.0, 0.1, 0.5, 2.0)
SPAWN_LIMIT_S = 30.0
SPAWNS_AT_ONCE = 32
"""The fork server's socket holds a few hundred messages."""
MAX_STILLBORN = 6
"""Workers that end before they have begun, one after the other, until the fork server is taken for broken."""
PING_INTERVAL_S = 1.0
PING_LIMIT_S = 15.0


class ProcessExecutor:
    """An `Executor` on a fork server.

    Waits for: a free worker (`_freed`). Unblocked by: a worker that has finished its turn or has just started.

    Args:
        workers, spare: worker processes, all alike.
        plugins: the rewards of these Python files and of installed packages; None for the built-in ones.
        memory_bytes: address space of each worker; 0 for no limit.
        environment: variables for the workers, beside the few of `worker_environment`.
        start_limit_s: limit for importing all rewards.
        on_restart: called with the cause whenever a worker is replaced: timeout, death, leaving, cancelled or unread;
            with "lost" when all go with the fork server.
    """

    def __init__(
        self,
        *,
        workers: int,
        spare: int = 0,
        plugins: Sequence[Path] | None = None,
        memory_bytes: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
        start_limit_s: float = 120.0,
        on_restart: Callable[[str], None] = lambda cause: None,
    ):
        self.workers, self._spare = workers, spare
        self.failed: str | None = None
        self._rewards: dict[str, LoadedReward] = {}
        self._plugins = [] if plugins is None else ["plugins", *map(str, plugins)]
        self._memory_bytes, self._start_limit_s = memory_bytes, start_limit_s
        self._mark, self._on_restart = uuid.uuid4().hex, on_restart
        self._environment = worker_environment(environment) | {MARK: self._mark}
        self._idle: list[WorkerHandle] = []  # the last works next: what it needs is still in the processor's caches
        self._freed = asyncio.Event()
        self._first = asyncio.Lock()  # of the turn that gets the next free worker; others come in their order
        self._living: dict[int, WorkerHandle] = {}
        self._spawned, self._unspawned = 0, ""
        self._loading = Loading(notices)
        self._stillborn = 0  # since a worker last came to life
        self._spawning = asyncio.Semaphore(SPAWNS_AT_ONCE)
        self._suspects = asyncio.Lock()
        self._pings = 0  # since the fork server last answered one
        self._last_release = -math.inf
        self._losses: list[float] = []
        self._reviving = self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._control: socket.socket
        self.keeper: subprocess.Popen[bytes] | None = None
        """The parent of the fork server, and the root of all processes of this executor; None before `launch`."""

    @property
    def rewards(self) -> Mapping[str, LoadedReward]:
        return self._rewards

    @property
    def spare(self) -> int:
        return self._spare if self._living else 0  # they are started anew

    @property
    def problem(self) -> str | None:
        if self.failed:
            return self.failed
        if self._living or time.monotonic() - self._last_release < REPLACEMENT_S:
            return None
        return "no worker process is running"

    def launch(self) -> None:
        """Start the fork server, which loads the rewards. When the server goes, it goes."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        command = [sys.executable, "-P", "-m", "grpo_reward.executors.forkserver", str(theirs.fileno())]
        with theirs:
            self.keeper = subprocess.Popen(  # noqa: S603 - our own module
                [*command, str(self._memory_bytes), *self._plugins],
                pass_fds=[theirs.fileno()],
                env=self._environment,
                start_new_session=True,
            )

    async def start(self) -> None:
        """Raises ExecutorUnavailable with a message for the operator when the rewards cannot be loaded."""
        if self.keeper is None:
            self.launch()
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def _begin(self) -> None:
        """What follows on `launch`: the rewards, and the workers."""
        try:
            async with asyncio.timeout(self._start_limit_s):
                await self._receive_rewards()
                self._pings = self._stillborn = 0
                self._background(self._listen())
                self._background(self._ping())
                await asyncio.gather(*(self._spawn() for _ in range(self.workers + self._spare)))
        except TimeoutError:
            reason = self._unspawned
            what = f"no worker could be started ({reason})" if reason else "the rewards were not loaded"
            if self._loading.importing:
                what = f"{self._loading.importing} was not imported"
            raise ExecutorUnavailable(f"{what} within {self._start_limit_s:g} s") from None

    async def stop(self) -> None:
        """Kill the workers, refuse who waits for one, wait for the fork server, which goes when its socket closes."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop_workers()
        if self.keeper is not None:
            self._control.close()
            await end(self.keeper, 5.0, self._mark)

    async def score(self, chunk: Chunk) -> None:
        blame = Blame(chunk, workers=self.workers + self._spare)
        given_back = False
        while not given_back and (items := blame.next_items()):
            # One of those that were in work when the fork server was lost may have ended it: which, is seen when each
            # of them is alone with it.
            async with self._suspects if blame.suspected else contextlib.nullcontext():
                given_back = await self._turn(chunk, items, blame)

    async def _turn(self, chunk: Chunk, items: list[int], blame: Blame) -> bool:
        """Give `items` to one worker; True when the rest waits for another turn of the chunk."""
        worker = await self._free_worker()
        try:
            ending = await chunk.at_work(worker.run(chunk, items))
        except (InvalidParams, PydanticSerializationError):
            self._release(worker)  # it has nothing of this chunk in work
            raise
        except BaseException:
            self._retire(worker, "cancelled")  # it may be in the middle of an item that nobody waits for
            raise
        if ending is None:
            self._retire(worker, "cancelled")
            return True
        match ending.kind:
            case "done":
                self._release(worker)
                return chunk.turn_s is not None
            case "unreadable":
                self._release(worker)
                if chunk.together:
                    chunk.ended = True  # those of others are scored alone
                chunk.give_up("error", f"the worker cannot read this: {ending.detail}")
            case "leaving":
                self._retire(worker, ending.kind)
            case "timeout" | "death" | "unread":
                blame.lost(ending, items, with_fork_server=worker.retired)
                self._retire(worker, ending.kind)
        return False

    async def _free_worker(self) -> WorkerHandle:
        async with self._first:
            while not self._idle:
                if self.failed or self._stopping:
                    raise ExecutorUnavailable(self.failed or "the server ends")
                self._freed.clear()
                await self._freed.wait()
            worker = self._idle.pop()
        worker.idle = False
        return worker

    def _release(self, worker: WorkerHandle) -> None:
        if worker.retired:  # with the fork server, just after it had finished
            return
        worker.idle = True
        self._last_release = time.monotonic()
        self._idle.append(worker)
        self._freed.set()

    def _retire(self, worker: WorkerHandle, cause: str) -> None:
        """Kill a worker and start another in its place."""
        if worker.retired:
            return
        worker.retired = True
        if worker.idle:
            self._idle.remove(worker)
        self._last_release = time.monotonic()
        self._living.pop(worker.number, None)
        worker.kill()
        worker.close()
        if self._stopping or self.failed:
            return
        self._on_restart(cause)
        if not self._reviving:  # or the fork server was lost by telling it: all workers are started anew, this one too
            self._background(self._spawn())

    async def _spawn(self) -> None:
        """Start one worker, however often it takes, unless the fork server is lost: the next starts all of them."""
        keeper = self.keeper
        for attempt in range(sys.maxsize):
            await asyncio.sleep(SPAWN_BACKOFF_S[min(attempt, len(SPAWN_BACKOFF_S) - 1)])
            self._spawned += 1
            try:
                worker = WorkerHandle(self._spawned, kill=partial(self._tell, {"kill": self._spawned}))
            except OSError as error:  # connections may have taken all descriptors
                self._unspawned = str(error)
                continue
            self._living[worker.number] = worker
            try:
                async with self._spawning, asyncio.timeout(SPAWN_LIMIT_S):
                    await worker.connect()
                    self._tell({"spawn": worker.number}, [worker.theirs.fileno(), worker.progress_fd])
                    worker.close_theirs()
                    if await worker.hello():
                        self._stillborn = 0
                        self._release(worker)
                        return
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                worker.close_theirs()
                raise
            self._stillborn += not worker.retired  # or it was not begun, or went with the fork server
            worker.retired = True
            self._living.pop(worker.number, None)
            worker.kill()
            worker.close()
            if self.failed or self._reviving or self.keeper is not keeper:
                return
            if self._stillborn >= MAX_STILLBORN and self._last_release > -math.inf:  # a worker was ready once
                self._lose(f"{self._stillborn} workers ended before they had begun")

    def _tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._stopping or self.failed or self._reviving:
            return
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except BlockingIOError:
            self._lose("the fork server does not listen any more")
        except OSError:
            self._lose("the fork server is gone")

    async def _receive_rewards(self) -> None:
        """Raises ExecutorUnavailable also when they are not what they were: scores would not mean the same."""
        rewards = await self._loading.receive(self._heard, ", ".join(self._plugins[1:]))
        hashes = {name: reward.description.code_hash for name, reward in rewards.items()}
        changed = [name for name, was in self._rewards.items() if hashes.get(name) != was.description.code_hash]
        if changed:
            raise ExecutorUnavailable(f"file or model of {', '.join(changed)} is not what it was at the server's start")
        self._rewards = rewards

    async def _heard(self) -> dict[str, Any] | None:
        """The fork server's next message; None when it is gone."""
        try:
            body = await asyncio.get_running_loop().sock_recv(self._control, PACKET_BYTES)
        except ConnectionError:
            return None
        return json.loads(body) if body else None

    async def _listen(self) -> None:
        while (message := await self._heard()) is not None:
            if "pong" in message:
                self._pings = 0
            elif "exited" in message:
                self._has_exited(message["exited"], message["status"])
            elif "unspawned" in message and (worker := self._living.get(message["unspawned"])) is not None:
                self._unspawned, worker.retired = message["reason"], True
                worker.connection_lost(None)
        self._lose("the fork server is gone")

    def _has_exited(self, number: int, status: int) -> None:
        if (worker := self._living.get(number)) is None:
            return
        worker.ended(status)
        if worker.idle:
            self._retire(worker, "death")
        else:
            # Do not wait for the end of the connection: a child that it forked may hold it open. Read its last words.
            asyncio.get_running_loop().call_later(0.2, worker.connection_lost, None)

    async def _ping(self) -> None:
        # Counted, not timed: this process may have been stopped itself, with the answer unread.
        while self._pings * PING_INTERVAL_S <= PING_LIMIT_S:
            self._pings += 1
            self._tell({"ping": self._pings})
            if self._reviving:  # the next fork server has a task of its own
                return
            await asyncio.sleep(PING_INTERVAL_S)
        self._lose(f"the fork server has not answered for {PING_LIMIT_S:g} s")

    def _lose(self, reason: str) -> None:
        """Without the fork server no worker can be replaced. It is started again, later if it is lost often."""
        if self.failed or self._stopping or self._reviving:
            return
        now = time.monotonic()
        self._losses = [loss for loss in self._losses if now - loss < LOSSES_S] + [now]
        pause_s = LOSS_PAUSES_S[min(len(self._losses), len(LOSS_PAUSES_S)) - 1]
        when = f" in {pause_s:g} s; that was {len(self._losses)} times within {LOSSES_S:g} s" if pause_s else ""
        log.error("%s, and its workers with it: it is started again%s", reason, when)
        for _ in range(self.workers + self._spare if self._living else 0):  # all are started anew
            self._on_restart("lost")
        self._reviving = True
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        self._let_go()
        self._background(self._revive(pause_s))

    async def _revive(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if self.keeper is not None:
            await asyncio.to_thread(self.keeper.wait)
        self._control.close()
        self.launch()
        self._reviving = False
        try:
            await self._begin()
        except ForkServerDied as error:
            self._lose(str(error))
        except ExecutorUnavailable as error:
            self._fail(f"{error}, after it had been lost")

    def _fail(self, reason: str) -> None:
        """The end: whoever started this server starts it anew."""
        if self.failed or self._stopping:
            return
        self.failed = reason
        self._let_go()

    def _let_go(self) -> None:
        """Kill the fork server, and with it all workers; wake those who wait for one."""
        if self.keeper is not None:
            kill_tree(self.keeper.pid, self._mark)  # it has not been waited for, so the number is still its own
        self._last_release = time.monotonic()
        self._drop_workers()

    def _drop_workers(self) -> None:
        for worker in list(self._living.values()):
            worker.retired = True
            worker.close()
            worker.ended(None)
        self._living.clear()
        self._idle.clear()
        self._freed.set()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"a task of the executor failed: {type(error).__name__}: {error}")
