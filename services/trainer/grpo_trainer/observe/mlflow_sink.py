"""Metrics to the MLflow server that MLFLOW_TRACKING_URI names."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from .run_identity import run_identity

MAX_PARAM_CHARS = 500
MAX_NAME_CHARS = 250
MAX_PARAMS_PER_CALL = 100
MAX_METRICS_PER_CALL = 1000


class MlflowSink:
    name = "mlflow"

    def __init__(self, run_dir: Path, *, project: str, run_name: str, resumed: bool, facts: Mapping[str, Any]):
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise ValueError("MLFLOW_TRACKING_URI is not set: set it to the server, such as http://mlflow:5000")
        self._client = MlflowClient()
        self._step, self._first_try_ms = -1, 0

        def create() -> str:
            run_id: str = self._client.create_run(self._experiment(project), run_name=run_name).info.run_id
            return run_id

        self._run_id = run_identity(run_dir, self.name, resumed=resumed, new=create)
        self._client.update_run(self._run_id, status="RUNNING")
        # A parameter can be written once; a resumed run has its parameters already.
        known = self._client.get_run(self._run_id).data.params
        params = [Param(key, str(value)[:MAX_PARAM_CHARS]) for key, value in _flat(facts).items() if key not in known]
        for start in range(0, len(params), MAX_PARAMS_PER_CALL):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS_PER_CALL])

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step, perhaps again after a lost answer: MLflow merges equal points."""
        if step != self._step:
            self._step, self._first_try_ms = step, int(time.time() * 1000)
        values = [Metric(allowed(key), value, self._first_try_ms, step) for key, value in metrics.items()]
        for start in range(0, len(values), MAX_METRICS_PER_CALL):
            self._client.log_batch(self._run_id, metrics=values[start : start + MAX_METRICS_PER_CALL])

    def close(self, failure: str | None) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if failure is None else "FAILED")

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        experiment_id: str = found.experiment_id if found else self._client.create_experiment(name)
        return experiment_id


def allowed(name: str) -> str:
    """Return a name that MLflow accepts: it refuses a whole step for a bad name, such as a reward's `pass@1`."""
    parts = re.sub(r"[^:/\w.\- ]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:MAX_NAME_CHARS].rstrip("/") or "_"


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}: MLflow's parameters are flat."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[allowed(f"{prefix}{key}")] = value
    return flat
