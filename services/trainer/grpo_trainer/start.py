"""A rank of a run from its first second to its end: it can be asked how it is before anything heavy is imported."""

from collections.abc import Iterator
from contextlib import contextmanager

from grpo_proto.quick_imports import quick_imports

from .config.run_config import RunConfig
from .observe.run_log import configure_logging
from .observe.run_status import RunStatus
from .observe.server import serve_status
from .ranks.launch import environment_rank
from .ranks.stop_signal import StopSignal


def start(config: RunConfig, *, resume: bool) -> int:
    """Serve the run's status, then run. Returns the exit status 0; raises TrainerError when it cannot start or go on.

    Only rank 0 has a server.
    """
    # A user's own code may change the working directory while it trains.
    config = config.model_copy(update={"run_dir": config.run_dir.absolute()})
    rank = environment_rank()
    configure_logging(rank=rank)
    stop = StopSignal()
    if rank == 0:
        stop.install()
    else:
        stop.uninstall()  # it waits for rank 0 and has nothing to save until all have met
    status = RunStatus(
        config.logging.run_name or config.run_dir.name,
        heartbeat_bound_s=config.server.heartbeat_s,
        mask_truncated=config.algorithm.mask_truncated_completions,
        # A push is tried again and again until its deadline.
        silent_stages={
            "save": config.server.saving_s,
            "push": config.weights.push_deadline_s + config.server.heartbeat_s,
        },
    )
    status.enter_phase("loading the libraries", limit_s=config.server.loading_s)
    with _served(status, config, rank):
        # Torch and DeepSpeed: ten seconds from a warm disk, minutes from a cold one.
        with quick_imports():
            from .run import run

        return run(config, resume=resume, status=status, stop=stop)


@contextmanager
def _served(status: RunStatus, config: RunConfig, rank: int) -> Iterator[None]:
    if rank != 0 or not config.server.enabled:
        yield
        return
    with serve_status(status, config.server):
        try:
            yield
        except BaseException as error:
            status.ended(f"{type(error).__name__}: {error}")
            raise
