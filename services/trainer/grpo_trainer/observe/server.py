"""The trainer's HTTP server, in a thread of its own: it answers while the loop computes.

Waits for: the thread to answer, at most `START_TIMEOUT_S`; on leaving for its end, at most `STOP_TIMEOUT_S`.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpo_proto.listening import listening_socket

from ..config import ServerConfig
from ..errors import UsageError
from .live_events import LiveEvents
from .live_guard import TOKEN_VARIABLE, LiveGuard
from .live_view import LiveView
from .routes import create_app
from .run_status import RunStatus

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
TICK_S = 1.0
MAX_CONNECTIONS = 128
SLOW_CLIENT_S = 10.0
"""A client that reads nothing for so long, while more waits for it than the sockets hold, is cut off."""


@dataclass(frozen=True)
class StatusServer:
    """A running server. `port` is the one bound, also when the configuration asked for any free one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


@contextmanager
def serve_status(status: RunStatus, config: ServerConfig) -> Iterator[StatusServer]:
    """Serve the trainer's routes while inside. Raises UsageError when the address cannot be bound."""
    sock = _bind(config)
    events = LiveEvents(LiveView(status))
    guard = LiveGuard(sock.getsockname()[0], os.environ.get(TOKEN_VARIABLE))
    server = _Server(
        uvicorn.Config(
            create_app(status, events, guard),
            http=ImpatientProtocol,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        ),
        events,
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[sock])), name="status-server", daemon=True
    )
    with sock:
        thread.start()
        _wait_until_started(server, thread)
        host, port = sock.getsockname()[:2]
        running = StatusServer(host, port)
        log.info("live page on %s/, status on /livez /readyz /info /metrics", running.url)
        if guard.shown_to_nobody:
            log.warning("the live page is shown to nobody: %s is not loopback and %s is not set", host, TOKEN_VARIABLE)
        try:
            yield running
        finally:
            server.stop()
            thread.join(STOP_TIMEOUT_S)


class _Server(uvicorn.Server):
    """Looks around once a second, where uvicorn does so ten times, and leaves as soon as it is told to.

    The thread shares its processor with a loop that computes: waking up costs more than anything it does.
    """

    def __init__(self, config: uvicorn.Config, events: LiveEvents):
        super().__init__(config)
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """From another thread: shut down."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The open pages first: their streams would hold up the end.
        self._events.close()
        await super().shutdown(sockets)


class ImpatientProtocol(H11Protocol):
    """Cuts off a client that does not read: what is written for it would wait for ever, and its place be taken."""

    _cut: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cut = self.loop.call_later(SLOW_CLIENT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError(f"the status server did not start within {START_TIMEOUT_S:g} s")
        time.sleep(0.01)


def _bind(config: ServerConfig) -> socket.socket:
    try:
        return listening_socket(config.host, config.port)
    except OSError as error:
        raise UsageError(
            f"the trainer's server cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            hint="set server.port to another one, to 0 for any free one, or server.enabled to false",
        ) from error
