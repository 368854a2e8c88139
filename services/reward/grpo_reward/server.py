"""The life of a server process: bind, load the rewards, serve, drain, stop."""

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from grpo_proto.listening import listening_socket

from .adapters.choice import choose
from .adapters.peers import ADAPTERS
from .config import ENV_PREFIX, Settings
from .connection import BoundedConnection
from .costs import Costs
from .executors.base import Executor, ExecutorUnavailable
from .executors.environment import hide_this_process
from .executors.gathering import GatheringExecutor
from .memo import Memo
from .metrics import Metrics
from .outgoing import UrlNotAllowedError, parsed_url
from .refusal import Refusal, nearest
from .scoring import Scoring

WATCH_INTERVAL_S = 0.2


def serve(settings: Settings) -> int:
    """Serve until a signal. Returns the exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on."""
    hide_this_process()
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        sock = listening_socket(settings.host, settings.port)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{settings.host}:{settings.port}"
        print(f"error: cannot listen on {where}: {reason}; --port takes another", file=sys.stderr)
        return 1
    config = uvicorn.Config(
        app="",
        http=BoundedConnection,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        # Later than the drain of `Scoring`, which answers what is cut.
        timeout_graceful_shutdown=int(settings.grace_s) + 5,
    )
    with sock, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            return runner.run(_serve(settings, sock, config))
        except KeyboardInterrupt:  # before it serves; later uvicorn takes it
            return 130


async def _serve(settings: Settings, sock: socket.socket, config: uvicorn.Config) -> int:
    metrics = Metrics()
    try:
        executor = make_executor(settings, metrics)
        # FastAPI takes a fifth of a second to import: here, while the fork server imports the rewards.
        loading = asyncio.to_thread(importlib.import_module, ".app", __package__)
        _, app = await asyncio.gather(executor.start(), loading)
    except ExecutorUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        _check_adapters(settings, executor)
        memo = Memo(settings.memo) if settings.memo else None
        costs = Costs()
        gathering = GatheringExecutor(executor, costs)
        scoring = Scoring(gathering, metrics, max_samples=settings.max_samples, costs=costs, memo=memo)
        config.app = app.create_app(settings, executor, metrics, scoring)
        server = _Server(config, scoring, settings.grace_s)
        host, port = sock.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        names = ", ".join(executor.rewards)
        print(f"grpo-reward serves http://{address} with {executor.workers} workers: {names}", flush=True)
        # uvicorn raises a signal it has handled once more at its end: then it must not kill.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
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


def make_executor(settings: Settings, metrics: Metrics) -> Executor:
    """Raises ExecutorUnavailable when its library is not installed."""
    memory_bytes = settings.worker_memory_mib * 2**20
    environment = environment_of_rewards(settings)
    if settings.executor == "ray":
        try:
            from .executors.ray import RayExecutor
        except ImportError as error:
            hint = "pip install 'grpo-reward[ray]'"
            raise ExecutorUnavailable(f"--executor ray needs the library {error.name}: {hint}") from error
        return RayExecutor(
            workers=settings.workers, plugins=settings.plugin, memory_bytes=memory_bytes, environment=environment
        )

    from .executors.process import ProcessExecutor

    return ProcessExecutor(
        workers=settings.num_workers,
        plugins=settings.plugin,
        memory_bytes=memory_bytes,
        environment=environment,
        on_restart=lambda cause: metrics.restarts.labels(cause).inc(),
    )


def environment_of_rewards(settings: Settings) -> dict[str, str]:
    """What the operator lets rewards know. Raises ExecutorUnavailable for a variable that is not set."""
    unset = [name for name in settings.worker_env if name not in os.environ]
    if unset:
        raise ExecutorUnavailable(f"--worker-env {unset[0]}: there is no such variable in the environment")
    for url in settings.allowed_url:
        try:
            parsed_url(url)
        except UrlNotAllowedError as error:
            raise ExecutorUnavailable(f"--allowed-url: {error}") from None
    environment = {name: os.environ[name] for name in settings.worker_env}
    if settings.allowed_url:
        environment[f"{ENV_PREFIX}ALLOWED_URL"] = ",".join(settings.allowed_url)
    if settings.reward_model:
        environment[f"{ENV_PREFIX}REWARD_MODEL"] = settings.reward_model
    return environment


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
