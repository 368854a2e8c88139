"""Metrics to Trackio, which keeps them on this machine (TRACKIO_DIR) or on a Hugging Face Space (TRACKIO_SPACE_ID)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from .run_identity import run_identity


class TrackioSink:
    name = "trackio"

    def __init__(self, run_dir: Path, *, project: str, run_name: str, resumed: bool, facts: Mapping[str, Any]):
        # Trackio identifies a run by its name: a new run under an old name must not continue the old curves.
        identity = run_identity(run_dir, self.name, resumed=resumed)
        self._run = trackio.init(
            project=project,
            name=f"{run_name}-{identity}",
            config=dict(facts),
            resume="allow",
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failure: str | None) -> None:
        self._run.finish()  # type: ignore[no-untyped-call]
