"""Run vLLM's API server with the routes of grpo-rollout, and report why it ended."""

import asyncio
import signal
import socket
import threading
from argparse import Namespace
from contextlib import suppress
from typing import Any, NoReturn

import uvloop
from pydantic import ValidationError
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
    """Serve until a signal (0) or until the engine dies (1); with --headless, run the workers of this machine alike.

    Raises StartError for what the user can fix.
    """
    cli_env_setup()
    if current_platform.is_unspecified():
        raise StartError(
            "vLLM finds no device that it is built for",
            "check that nvidia-smi lists a GPU; a container needs NVIDIA's runtime (Kubernetes: runtimeClassName)",
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
    except OverflowError as error:  # --port 99999
        raise StartError(f"--port {args.port}: {error}") from error
    except OSError as error:
        raise StartError(
            f"cannot listen on {args.host}:{args.port}: {error.strerror}", "choose another --port", exit_status=1
        ) from error
    signal.signal(signal.SIGTERM, _stop_while_starting)
    with sock:
        return uvloop.run(_serve(args, address, sock))


def _stop_while_starting(*_: object) -> NoReturn:
    """Handle SIGTERM until uvicorn runs and vLLM installs its own handler."""
    raise KeyboardInterrupt


async def _serve(args: Namespace, address: str, sock: socket.socket) -> int:
    decorate_logs("APIServer", skip_if_decorated=True)
    observer: ShutdownObserver | None = None
    try:
        async with build_async_engine_client(args) as engine:
            observer = ShutdownObserver(engine)
            connection = BoundedConnection.with_body_limit(args.body_timeout_s)  # for all routes, vLLM's too
            shutdown = await build_and_serve(engine, address, sock, args, http=connection)
            # Distinguish a signal from the engine's death: vLLM returns after both, and only a signal stops the engine.
            requested = observer.requested
        await shutdown
    except (OSError, ValueError, RuntimeError) as error:
        if observer is not None:
            raise
        if isinstance(error, ValidationError):  # of vLLM's configuration: its first line is a count
            told = error.errors()[0]["msg"].removeprefix("Value error, ").splitlines()[0]
            raise StartError(f"cannot start {args.model}: {told}") from error
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartError(f"cannot start {args.model}: {first_line}", "see the log above", exit_status=1) from error
    if requested:
        return 0
    raise StartError("the engine process has died", "see the log above", exit_status=1)


class ShutdownObserver:
    """Record whether vLLM shut its engine down, and abort all sequences before that, to answer their clients."""

    def __init__(self, engine: Any):
        self.requested = False
        self._engine = engine
        self._shutdown = engine.shutdown
        self._loop = asyncio.get_running_loop()
        engine.shutdown = self._observe

    def _observe(self, timeout: float | None = None) -> None:
        """Stand in for the engine client's `shutdown`.

        vLLM calls it in a thread after a signal, and in the event loop when the server has already ended.
        """
        drains = bool(timeout)
        if not self.requested and not drains and threading.current_thread() is not threading.main_thread():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(abort_all(self._engine), self._loop).result(ABORT_TIMEOUT_S)
        self.requested = True
        self._shutdown(timeout=timeout)
