"""The trainer's HTTP server, in a thread of its own: it answers while the loop computes.

Waits for: the thread to answer, at most `START_TIMEOUT_S`; on leaving for its end, at most `STOP_TIMEOUT_S`.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from grpo_proto.listening import listening_socket

from ..config import ServerConfig
from ..errors import UsageError
from .routes import create_app
from .run_status import RunStatus

log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 128


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
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(status),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[sock])), name="status-server", daemon=True
    )
    with sock:
        thread.start()
        _wait_until_started(server, thread)
        host, port = sock.getsockname()[:2]
        running = StatusServer(host, port)
        log.info("status on %s: /livez /readyz /info /metrics", running.url)
        try:
            yield running
        finally:
            server.should_exit = True
            thread.join(STOP_TIMEOUT_S)


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
