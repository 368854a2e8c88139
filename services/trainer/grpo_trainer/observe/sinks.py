"""Where the numbers of a step go: metrics.jsonl always, experiment trackers when `report_to` names them."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..config import LoggingConfig
from ..errors import UsageError
from .jsonl import StepFile
from .run_files import METRICS_FILE

log = logging.getLogger(__name__)


class MetricSink(Protocol):
    """Takes the metrics of one step; only finite numbers reach it. May raise whatever its library raises."""

    name: str

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricSinks:
    """All sinks of a run. A failing metrics.jsonl ends the run; a failing other sink is logged and counted, no more.

    `failures` counts the failed calls of each sink. A sink that could not be opened stays away for the whole run.
    """

    def __init__(self, file: StepFile, openers: Mapping[str, Callable[[], MetricSink]]):
        self._file = file
        self.failures: dict[str, int] = dict.fromkeys(openers, 0)
        self._sinks: list[MetricSink] = []
        for name, opener in openers.items():
            try:
                self._sinks.append(opener())
            except Exception as error:  # whatever a third party's library raises must not end the run
                self._failed(name, "open", error)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step, each step once and in order. Numbers that are not finite are null in metrics.jsonl."""
        lost = {f"sinks/{name}_failures": count for name, count in self.failures.items() if count}
        self._file.append([{"step": step, **metrics, **lost}])
        finite = {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
        for sink in self._sinks:
            try:
                sink.write(step, finite)
            except Exception as error:  # as above
                self._failed(sink.name, "write", error)

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:  # as above
                self._failed(sink.name, "close", error)

    def _failed(self, name: str, action: str, error: Exception) -> None:
        self.failures[name] += 1
        count = self.failures[name]
        # A sink that fails at every step must not fill the log: powers of two are enough.
        if count & (count - 1) == 0:
            log.warning("%s: %s failed (%d so far), the run goes on without: %s", name, action, count, error)


def open_sinks(
    config: LoggingConfig, run_dir: Path, *, resumed_step: int | None, facts: Mapping[str, Any]
) -> MetricSinks:
    """The sinks of a run in `run_dir`. `resumed_step`: the last step kept, None for a new run.

    `facts` is the configuration as the trackers show it beside the curves. Raises UsageError when a library is not
    installed: nobody should find that out after the run.
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
    return MetricSinks(StepFile(run_dir / METRICS_FILE, keep_through_step=resumed_step), openers)


@dataclass(frozen=True)
class TrackedRun:
    """What an experiment tracker has to know of a run."""

    config: LoggingConfig
    run_dir: Path
    resumed_step: int | None
    facts: Mapping[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        """The arguments that the trackers with projects and runs have in common."""
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
    from .wandb_sink import WandbSink

    return WandbSink(run.run_dir, **run.named)


def _trackio(run: TrackedRun) -> MetricSink:
    from .trackio_sink import TrackioSink

    return TrackioSink(run.run_dir, **run.named)


def _swanlab(run: TrackedRun) -> MetricSink:
    from .swanlab_sink import SwanLabSink

    return SwanLabSink(run.run_dir, **run.named)


def _mlflow(run: TrackedRun) -> MetricSink:
    from .mlflow_sink import MlflowSink

    return MlflowSink(run.run_dir, **run.named)


OPENERS: Mapping[str, Callable[[TrackedRun], MetricSink]] = {
    "tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio, "swanlab": _swanlab, "mlflow": _mlflow,
}  # fmt: skip
