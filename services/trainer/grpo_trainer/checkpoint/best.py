"""Which checkpoint is the best by an evaluation metric, and whether the run still gets better."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..config.checkpoint import CheckpointConfig
from ..config.run_config import RunConfig
from ..ranks.crew import Crew
from .files import STATE, checkpoint_folder, newest_whole

log = logging.getLogger(__name__)


@dataclass
class BestCheckpoint:
    """The best evaluation so far, of which a checkpoint is kept; all checkpoints know it.

    The evaluation before the first step is none of them: it has no checkpoint. An evaluation without the metric, of
    which nothing could be scored, is neither better nor worse.
    """

    metric: str | None = None
    greater_is_better: bool = True
    step: int | None = None
    value: float | None = None
    evaluations_since: int = 0
    is_paused: bool = False
    """Whether no better one is looked for: the run file names no metric any more."""

    @classmethod
    def of(cls, config: CheckpointConfig, known: Mapping[str, Any] | None, *, run_dir: Path) -> Self:
        """Begin anew, or go on from what a checkpoint knew, unless that is of other settings or is gone."""
        new = cls(config.metric_for_best, config.greater_is_better)
        old = replace(cls(**known), is_paused=False) if known else new
        if new.metric is None and old.step is not None:
            log.warning(
                "checkpoint.metric_for_best is absent now: the checkpoint of step %d, the best %s until here, is kept, "
                "and no better one is looked for", old.step, old.metric,
            )  # fmt: skip
            return replace(old, is_paused=True)
        if (old.metric, old.greater_is_better) != (new.metric, new.greater_is_better):
            return new
        if old.step is not None and not checkpoint_folder(run_dir, old.step).is_dir():
            log.warning("the best checkpoint, of step %d, is gone: the best is looked for anew", old.step)
            return new
        return old

    def judge(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation. An equal value is no improvement."""
        if self.metric is None or self.is_paused:
            return
        value = metrics.get(self.metric)
        if value is None:
            known = ", ".join(name for name in sorted(metrics) if name.startswith("eval")) or "nothing"
            log.warning(
                "the evaluation after step %d has no %s, which is checkpoint.metric_for_best: it has %s", step,
                self.metric, known,
            )  # fmt: skip
        if step == 0 or value is None or not math.isfinite(value):
            return
        if self.value is None or (value > self.value if self.greater_is_better else value < self.value):
            self.step, self.value, self.evaluations_since = step, value, 0
        elif step != self.step:
            self.evaluations_since += 1

    def is_exhausted(self, patience: int | None) -> bool:
        """Whether `patience` evaluations in a row have brought no improvement."""
        return patience is not None and self.evaluations_since >= patience

    def facts(self) -> dict[str, Any]:
        """Entries of the summary; none when no best checkpoint was asked for."""
        if self.metric is None:
            return {}
        folder = None if self.step is None else checkpoint_folder(Path(), self.step).as_posix()
        return {"best_metric": self.metric, "best_value": self.value, "best_checkpoint": folder}


def best_known_at(run_dir: Path, step: int) -> int | None:
    """The step of the best checkpoint as that of `step` knows it; None when it knows none, or cannot be read."""
    try:
        state = json.loads((checkpoint_folder(run_dir, step) / STATE).read_text())
    except (OSError, ValueError):  # a damaged one: whoever looks for a whole checkpoint skips it
        return None
    best: int | None = (state.get("best") or {}).get("step")
    return best


def load_best(config: RunConfig, best: BestCheckpoint, crew: Crew, *, step: int) -> int:
    """Load the best checkpoint for the final model, after the last step `step`. Returns the step that it is of."""
    if best.step is None or best.step == step:
        return step
    found = newest_whole(config.run_dir, [best.step])
    if found is None:
        log.warning("the best checkpoint, of step %d, is damaged: the final model is that of step %d", best.step, step)
        return step
    crew.do("load_engine", str(found[0] / "engine"))
    log.info("the final model is that of step %d, the best %s", best.step, best.metric)
    return best.step
