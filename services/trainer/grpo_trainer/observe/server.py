"""The trainer's HTTP server, in its own thread: it answers while the loop computes.

Waits for: the thread to answer, at most `START_TIMEOUT_S`; when closing for its end, at most `STOP_TIMEOUT_S`.
"""

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn

from grpo_proto.api_token import TOKEN_VARIABLE, TokenError, server_tokens
from grpo_proto.loopback import is_loopback
from grpo_proto.server.connection import BoundedConnection
from grpo_proto.server.listening import listening_socket
from grpo_proto.server.loopback_names import LoopbackNames

from ..config.observing import ServerConfig
from ..errors import UnavailableError, UsageError
from .live_events import LiveEvents
from .live_guard import LiveGuard
from .live_view import LiveView
from .routes import create_app
from .run_status import RunStatus

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
TICK_S = 1.0


@dataclass(frozen=True)
class StatusServer:
    """A running server. `port` is the bound port, also when the configuration has 0."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def checked_tokens(config: ServerConfig) -> tuple[str, ...]:
    """Return the tokens that guard the live page. Raises UsageError for an address off loopback without a token."""
    try:
        tokens = server_tokens()
    except TokenError as error:
        raise UsageError(str(error)) from None
    if not tokens and not is_loopback(config.host):
        raise UsageError(
            f"server.host {config.host or '0.0.0.0'} can be reached from other machines, and {TOKEN_VARIABLE} is not "  # noqa: S104
            "set: the live page shows prompts and completions",
            hint=f"set {TOKEN_VARIABLE} to a secret, or server.host to 127.0.0.1, or server.enabled to false",
        )
    return tokens


@contextmanager
def serve_status(status: RunStatus, config: ServerConfig) -> Iterator[StatusServer]:
    """Serve the trainer's routes while inside. Raises UsageError, or UnavailableError when the port is taken."""
    tokens = checked_tokens(config)
    sock = _bind(config)
    events = LiveEvents(LiveView(status))
    app = create_app(status, events, LiveGuard(sock.getsockname()[0], tokens))
    server = _Server(
        uvicorn.Config(
            app if tokens else LoopbackNames(app),
            http=ImpatientConnection,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
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
        try:
            yield running
        finally:
            server.stop()
            thread.join(STOP_TIMEOUT_S)


class _Server(uvicorn.Server):
    """Tick once a second, where uvicorn ticks ten times, and stop at once on request.

    The thread shares its processor with a loop that computes: waking up costs more than all its work.
    """

    def __init__(self, config: uvicorn.Config, events: LiveEvents):
        super().__init__(config)
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Shut down; called from another thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Close the open pages first: their streams would block the shutdown.
        self._events.close()
        await super().shutdown(sockets)


class ImpatientConnection(BoundedConnection):
    """Short limits: probes, Prometheus and browsers send small requests and read at once."""

    body_limit_s = 10.0
    unread_limit_s = 10.0
    max_idle = 64


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
        kind = UnavailableError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(
            f"the trainer's server cannot listen on {config.host}:{config.port}: {error.strerror or error}",
            hint="set server.port to another port, to 0 for any free port, or server.enabled to false",
        ) from error
