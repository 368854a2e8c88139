"""The beginning of a server process: bind, start loading the rewards, and import what serves meanwhile."""

import logging
import os
import signal
import sys

from grpo_proto.log_lines import formatter
from grpo_proto.server.listening import listening_socket

from .background_log import BackgroundHandler, OddRequests
from .config import ENV_PREFIX, Settings
from .executors.base import Executor, ExecutorUnavailable
from .executors.environment import KEYS_OF_BUILT_IN, hide_this_process
from .metrics import Metrics
from .reward_models import MODELS_VARIABLE, as_variable, is_url, named_models
from .sandbox.run import SANDBOX_VARIABLE

LAST_LINES_S = 1.0


def serve(settings: Settings) -> int:
    """Serve until a signal. Returns the exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on."""
    hide_this_process()
    _reset_signals()
    handler = logging.StreamHandler()
    try:
        handler.setFormatter(formatter("reward"))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    background = BackgroundHandler(handler)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[background])
    for name in ("uvicorn.error", "asyncio", "grpo_reward.adapters"):
        logging.getLogger(name).addFilter(OddRequests())
    status = _serve(settings)
    if not background.finish(LAST_LINES_S):
        # Python itself would wait for the line that cannot be written.
        os._exit(status)
    return status


def _reset_signals() -> None:
    """Undo what whoever started this process may have left, for it and for its children.

    Blocked signals could not end it, and with SIGCHLD ignored nobody learns how a child ended.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _serve(settings: Settings) -> int:
    try:
        sock = listening_socket(settings.host, settings.port)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{settings.host}:{settings.port}"
        print(f"error: cannot listen on {where}: {reason}; --port takes another", file=sys.stderr)
        return 1
    metrics = Metrics()
    with sock:
        try:
            executor = make_executor(settings, metrics)
            executor.launch()
        except ExecutorUnavailable as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        # FastAPI and uvicorn take a quarter of a second to import: here, while the fork server imports the rewards.
        from .serving import run

        return run(settings, sock, executor, metrics)


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

    from .executors.separate import worker_processes
    from .executors.turns import num_spare

    return worker_processes(
        workers=settings.num_workers,
        spare=num_spare(settings.num_workers),
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
    of_models = {f"--reward-model {name}": model for name, model in named_models(settings.reward_model).items()}
    urls = dict.fromkeys(settings.allowed_url, "--allowed-url")
    urls |= {model: flag for flag, model in of_models.items() if is_url(model) and model not in urls}
    for url, flag in urls.items():
        from .outgoing import UrlNotAllowedError, parsed_url

        try:
            parsed_url(url)
        except UrlNotAllowedError as error:
            raise ExecutorUnavailable(f"{flag}: {error}") from None
    environment = {name: os.environ[name] for name in (*settings.worker_env, *KEYS_OF_BUILT_IN) if name in os.environ}
    environment[SANDBOX_VARIABLE] = settings.code_sandbox
    if urls:
        environment[f"{ENV_PREFIX}ALLOWED_URL"] = ",".join(urls)
    if settings.reward_model:
        environment[MODELS_VARIABLE] = as_variable(settings.reward_model)
    return environment
