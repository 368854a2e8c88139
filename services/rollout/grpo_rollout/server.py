"""Runs vLLM's API server with our plugin in it, and knows why it ended."""

import asyncio
import signal
import socket
import threading
from argparse import Namespace
from contextlib import suppress
from typing import Any, NoReturn

import uvloop
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_async_engine_client
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.system_utils import decorate_logs

from grpo_proto.server.connection import BoundedConnection

from .engine import abort_all
from .headless import run_workers
from .options import StartError, add_options, check_options

ABORT_TIMEOUT_S = 5.0


def run(arguments: list[str]) -> int:
    """Serve until a signal (0) or until the engine dies (1); with --headless, the same for the workers of this machine.

    Raises StartError for what a user can mend.
    """
    cli_env_setup()
    if current_platform.is_unspecified():
        raise StartError(
            "vLLM finds no device that it is built for",
            "does nvidia-smi show a GPU here? In a container NVIDIA's runtime brings it (Kubernetes: runtimeClassName)",
        )
    parser = make_arg_parser(FlexibleArgumentParser(prog="grpo-rollout serve", description=__doc__))
    on_cpu = current_platform.is_cpu()
    add_options(parser, on_cpu=on_cpu)
    args = parser.parse_args(arguments)
    check_options(args, on_cpu=on_cpu)
    configure_logging_from_args(args)
    if args.headless:
        return run_workers(args)
    try:
        validate_parsed_serve_args(args)
        address, sock = setup_server(args, reuse_port=False)
    except (ValueError, KeyError) as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(
            f"cannot listen on {args.host}:{args.port}: {error.strerror}", "choose another --port"
        ) from error
    signal.signal(signal.SIGTERM, _stop_while_starting)
    with sock:
        return uvloop.run(_serve(args, address, sock))


def _stop_while_starting(*_: object) -> NoReturn:
    """Signal handler until uvicorn runs and vLLM takes the signal over."""
    raise KeyboardInterrupt


async def _serve(args: Namespace, address: str, sock: socket.socket) -> int:
    decorate_logs("APIServer", skip_if_decorated=True)
    stop: StopWatch | None = None
    try:
        async with build_async_engine_client(args) as engine:
            stop = StopWatch(engine)
            connection = BoundedConnection.with_body_limit(args.body_timeout_s)  # of all routes, vLLM's too
            shutdown = await build_and_serve(engine, address, sock, args, http=connection)
            # vLLM comes here after a signal and after the death of its engine alike; only a signal stops the engine.
            asked = stop.was_asked
        await shutdown
    except (OSError, ValueError, RuntimeError) as error:
        if stop is not None:
            raise
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartError(f"cannot start {args.model}: {first_line}", "the log above says more") from error
    if asked:
        return 0
    raise StartError("the engine process has died; the log above says more")


class StopWatch:
    """Notes whether vLLM was asked to stop its engine, and has its clients answered before that happens."""

    def __init__(self, engine: Any):
        self.was_asked = False
        self._engine = engine
        self._shutdown = engine.shutdown
        self._loop = asyncio.get_running_loop()
        engine.shutdown = self._note

    def _note(self, timeout: float | None = None) -> None:
        """vLLM calls this in a thread after a signal, and in the event loop when the server has ended already."""
        drains = bool(timeout)
        if not self.was_asked and not drains and threading.current_thread() is not threading.main_thread():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(abort_all(self._engine), self._loop).result(ABORT_TIMEOUT_S)
        self.was_asked = True
        self._shutdown(timeout=timeout)
