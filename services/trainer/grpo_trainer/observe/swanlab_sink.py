"""Metrics to SwanLab. Its own settings work: SWANLAB_MODE=offline, SWANLAB_API_KEY, SWANLAB_WORKSPACE."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import swanlab

from .run_identity import run_identity


class SwanLabSink:
    name = "swanlab"

    def __init__(self, run_dir: Path, *, project: str, run_name: str, resumed: bool, facts: Mapping[str, Any]):
        self._run = swanlab.init(
            project=project,
            name=run_name,
            id=run_identity(run_dir, self.name, resumed=resumed),
            resume="allow",
            log_dir=str(run_dir / "swanlab"),
            config=dict(facts),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failure: str | None) -> None:
        self._run.finish("success" if failure is None else "crashed", error=failure)
