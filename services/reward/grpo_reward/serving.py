"""From rewards that load to a server that has ended: serve, drain, stop."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from grpo_proto.api_token import server_tokens
from grpo_proto.server.connection import BoundedConnection
from grpo_proto.server.listening import KEEP_IDLE_S, ask_for_files

from .adapters.choice import choose
from .adapters.peers import ADAPTERS
from .app import create_app
from .config import Settings
from .costs import Costs
from .executors.base import Executor, ExecutorUnavailable
from .executors.gathering import GatheringExecutor
from .executors.separate import each_part
from .executors.turns import TurnsExecutor
from .memo import Memo
from .metrics import Metrics
from .refusal import Refusal, nearest
from .scoring import Scoring
from .stdout import drop_output
from .tracing import Tracing

log = logging.getLogger("grpo_reward")

WATCH_INTERVAL_S = 0.2
MOST_FILES = 65_536
"""Each connection is one."""


def run(settings: Settings, sock: socket.socket, executor: Executor, metrics: Metrics) -> int:
    """Serve on `sock` until a signal. Returns the exit status."""
    ask_for_files(MOST_FILES)  # the processes of the executor were begun before, and keep what they had
    config = uvicorn.Config(
        app="",
        # The application refuses a body that is late, and counts it; this is for one that nobody reads any more.
        http=BoundedConnection.with_body_limit(settings.body_timeout_s + 5.0),
        ws="none",
        timeout_keep_alive=KEEP_IDLE_S,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        # Later than the drain of `Scoring`, which answers what is cut.
        timeout_graceful_shutdown=int(settings.grace_s) + 5,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            return runner.run(_serve(settings, sock, config, executor, metrics))
        except KeyboardInterrupt:  # before it serves; later uvicorn takes it
            return 130


async def _serve(
    settings: Settings, sock: socket.socket, config: uvicorn.Config, executor: Executor, metrics: Metrics
) -> int:
    tracing = None
    try:
        tracing = Tracing(settings.otlp_endpoint)
        await executor.start()
        _check_adapters(settings, executor)
        memo = Memo(settings.memo) if settings.memo else None
        costs = Costs()
        in_turns = each_part(executor, lambda part: GatheringExecutor(TurnsExecutor(part, costs), costs))
        scoring = Scoring(in_turns, metrics, costs=costs, memo=memo)
        config.app = create_app(settings, executor, metrics, scoring, tracing, tokens=server_tokens())
        gc.freeze()  # what is here now stays: the collector need not look at it again
        server = _Server(config, scoring, settings.grace_s)
        # Also before uvicorn looks for signals, and after it has: those it had, it raises once more.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                signal.signal(number, server.handle_exit)
        host, port = sock.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        names = ", ".join(executor.rewards)
        _announce(f"grpo-reward serves http://{address} with {executor.workers} workers: {names}")
        watch = asyncio.create_task(_watch(executor, server))
        await server.serve(sockets=[sock])
        watch.cancel()
        if executor.failed:
            print(f"error: {executor.failed}", file=sys.stderr)
            return 1
        return 0
    except ExecutorUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        await executor.stop()
        if tracing is not None:
            tracing.close()


def _announce(line: str) -> None:
    """Print to stdout; where that cannot be written, as on a full disk, log it: that is no reason not to serve."""
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("stdout cannot be written (%s): %s", error.strerror, line)
        drop_output()


def _check_adapters(settings: Settings, executor: Executor) -> None:
    """Raises ExecutorUnavailable when `--adapter-rewards` could never score."""
    if not settings.adapter_rewards:
        return
    own = {name for adapter in ADAPTERS for name in adapter.options}
    try:
        choice = choose([], settings.adapter_rewards, executor.rewards, own)
        unknown = [spec.name for spec in choice.rewards if spec.name not in executor.rewards]
        message = f"there is no reward {unknown[0]}, {nearest(unknown[0], executor.rewards)}" if unknown else None
    except Refusal as refusal:
        message = str(refusal)
    if message:
        raise ExecutorUnavailable(f"--adapter-rewards {settings.adapter_rewards}: {message}")


class _Server(uvicorn.Server):
    """uvicorn, with our grace period: on a signal it stops accepting and what runs has `grace_s` left."""

    def __init__(self, config: uvicorn.Config, scoring: Scoring, grace_s: float):
        super().__init__(config)
        self._scoring, self._grace_s = scoring, grace_s
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._loop.call_soon_threadsafe(self._scoring.drain, self._grace_s)
        super().handle_exit(sig, frame)


async def _watch(executor: Executor, server: uvicorn.Server) -> None:
    """A server that can never score again ends, so that whoever started it starts it anew."""
    while not executor.failed:  # noqa: ASYNC110 - the seam is a property, so that any executor can have it
        await asyncio.sleep(WATCH_INTERVAL_S)
    server.should_exit = True
