"""Metrics to Weights & Biases. The run's id lives in the run folder, so that a resumed run continues the same one.

wandb's own settings work: WANDB_MODE=offline, WANDB_API_KEY, WANDB_ENTITY, WANDB_BASE_URL and so on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from .run_identity import run_identity

FINISH_TIMEOUT_S = 20.0
"""Limit for uploads at the end of a run; the rest stays in the folder for `wandb sync`. Below `FINISH_S` of
background_sink.py."""


class WandbSink:
    name = "wandb"

    def __init__(self, run_dir: Path, *, project: str, run_name: str, resumed: bool, facts: Mapping[str, Any]):
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=run_identity(run_dir, self.name, resumed=resumed),
            resume="allow",
            dir=str(run_dir),
            config=dict(facts),
            settings=wandb.Settings(finish_timeout=FINISH_TIMEOUT_S, finish_timeout_raises=False),
        )
        # wandb's step counter refuses to go back, as a resumed run must: the trainer's step is the x axis.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def close(self, failure: str | None) -> None:
        self._run.finish(exit_code=0 if failure is None else 1)
