"""The sinks of a step's numbers: metrics.jsonl always, experiment trackers when `report_to` names them."""

import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.observing import LoggingConfig
from ..errors import UsageError
from ..ranks.stop_signal import StopSignal
from .background_sink import BackgroundSink, MetricSink, finish
from .jsonl import StepFile
from .run_files import METRICS_FILE

log = logging.getLogger(__name__)


class MetricSinks:
    """All sinks of a run. A failing metrics.jsonl ends the run; any other failing sink is only logged and counted.

    Sinks `in_background` call a server: each has its own thread, and the loop waits for none of them.
    `failures` counts the failed calls of each sink. A sink that could not be opened stays away for the whole run.
    """

    def __init__(
        self,
        file: StepFile,
        openers: Mapping[str, Callable[[], MetricSink]],
        *,
        in_background: Collection[str] = (),
    ):
        self._file = file
        self.failures: dict[str, int] = dict.fromkeys(openers, 0)
        self._counting = threading.Lock()
        self._sinks: list[MetricSink] = []
        self._background: list[BackgroundSink] = []
        for name, opener in openers.items():
            if name in in_background:
                self._background.append(BackgroundSink(name, opener, failed=partial(self._failed, name)))
                continue
            try:
                self._sinks.append(opener())
            except Exception as error:  # no exception of a third-party library may end the run
                self._failed(name, "open", error)

    @property
    def lost_steps(self) -> dict[str, int]:
        """Steps that each sink in the background did not get."""
        return {sink.name: sink.lost_steps for sink in self._background}

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step; call it once for each step, in order. Numbers that are not finite become null.

        Raises OSError when the file cannot be written; the trackers have the step then.
        """
        counts = {f"sinks/{name}_failures": count for name, count in self.failures.items() if count}
        counts |= {f"sinks/{name}_lost_steps": count for name, count in self.lost_steps.items() if count}
        self._write_finite(step, metrics)
        self._file.append([{"step": step, **metrics, **counts}])

    def complete(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add late metrics to the last step, which has been written."""
        self._write_finite(step, metrics)
        self._file.add_to_last({"step": step, **metrics})

    def _write_finite(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
        for background in self._background:
            background.write(step, finite)
        for sink in self._sinks:
            try:
                sink.write(step, finite)
            except Exception as error:  # as above
                self._failed(sink.name, "write", error)

    def close(self, stop: StopSignal, *, failure: str | None = None) -> None:
        """Wait for the sinks in the background, until `stop`. With a `failure`, trackers mark the run as failed."""
        for sink in self._sinks:
            try:
                sink.close(failure)
            except Exception as error:  # as above
                self._failed(sink.name, "close", error)
        finish(self._background, stop, failure=failure)
        self._file.close()  # raises when the disk is full

    def _failed(self, name: str, action: str, error: BaseException) -> None:
        with self._counting:
            self.failures[name] += 1
            count = self.failures[name]
        # Log powers of two: a sink that fails at every step must not fill the log.
        if count & (count - 1) == 0:
            log.warning("%s: %s failed (%d so far), the run continues without it: %s", name, action, count, error)


def open_sinks(
    config: LoggingConfig, run_dir: Path, *, resumed_step: int | None, facts: Mapping[str, Any]
) -> MetricSinks:
    """The sinks of a run in `run_dir`. `resumed_step`: the last step kept, None for a new run.

    `facts` is the configuration that the trackers show beside the curves. Raises UsageError when a library is not
    installed: the run must fail at its start, not lose its curves.
    """
    run = TrackedRun(config, run_dir, resumed_step, facts)
    openers: dict[str, Callable[[], MetricSink]] = {}
    for name in config.report_to:
        if find_spec(name) is None:  # each library has the name of its tracker
            raise UsageError(
                f"logging.report_to names {name}, which is not installed",
                hint=f"pip install 'grpo-trainer[{name}]', or leave it out",
            )
        openers[name] = partial(OPENERS[name], run)
    file = StepFile(run_dir / METRICS_FILE, keep_through_step=resumed_step)
    return MetricSinks(file, openers, in_background=openers.keys() - LOCAL)


@dataclass(frozen=True)
class TrackedRun:
    """The arguments from which an experiment tracker is opened."""

    config: LoggingConfig
    run_dir: Path
    resumed_step: int | None
    facts: Mapping[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        """The arguments common to the trackers with projects and runs."""
        return {
            "project": self.config.project,
            "run_name": self.config.run_name or self.run_dir.name,
            "resumed": self.resumed_step is not None,
            "facts": self.facts,
        }


def _tensorboard(run: TrackedRun) -> MetricSink:
    from .tensorboard_sink import TensorBoardSink

    return TensorBoardSink(run.run_dir / "tensorboard", resumed_step=run.resumed_step)


def _wandb(run: TrackedRun) -> MetricSink:
    # Its default is 90 s, and a process that ends meanwhile waits for it.
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "15")
    from .wandb_sink import WandbSink

    return WandbSink(run.run_dir, **run.named)


def _trackio(run: TrackedRun) -> MetricSink:
    from .trackio_sink import TrackioSink

    return TrackioSink(run.run_dir, **run.named)


def _swanlab(run: TrackedRun) -> MetricSink:
    from .swanlab_sink import SwanLabSink

    return SwanLabSink(run.run_dir, **run.named)


def _mlflow(run: TrackedRun) -> MetricSink:
    # Set before the import. The default is four minutes for each call while a server is away.
    for variable, value in MLFLOW_PATIENCE.items():
        os.environ.setdefault(variable, value)
    from .mlflow_sink import MlflowSink

    return MlflowSink(run.run_dir, **run.named)


OPENERS: Mapping[str, Callable[[TrackedRun], MetricSink]] = {
    "tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio, "swanlab": _swanlab, "mlflow": _mlflow,
}  # fmt: skip

LOCAL = frozenset({"tensorboard"})
"""Sinks that write files of the run folder, and call no server."""

MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Retries of a call, and seconds of each attempt."""
