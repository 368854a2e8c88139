"""Experiment trackers, with their real libraries and without a network."""

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_trainer.config.observing import LoggingConfig
from grpo_trainer.errors import UsageError
from grpo_trainer.observe import background_sink
from grpo_trainer.observe.jsonl import StepFile
from grpo_trainer.observe.run_identity import run_identity
from grpo_trainer.observe.sinks import MLFLOW_PATIENCE, MetricSinks, open_sinks
from grpo_trainer.ranks.stop_signal import StopSignal

TRACKER_FINISH_S = 120.0
"""Limit for a tracker's real library here: on a loaded machine some open for longer than a run waits at its end."""


@pytest.fixture(autouse=True)
def waits_for_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_sink, "FINISH_S", TRACKER_FINISH_S)


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LoggingConfig(report_to=["tensorboard"])
    for resumed_step, steps, value in ((None, range(1, 6), 0.0), (3, range(4, 7), 1.0)):
        sinks = open_sinks(config, tmp_path, resumed_step=resumed_step, facts={})
        for step in steps:
            sinks.write(step, {"reward": value, "rewards/countdown/mean": value})
        sinks.close(StopSignal())
        assert sinks.failures == {"tensorboard": 0}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"reward", "rewards/countdown/mean"} <= set(events.Tags()["scalars"])
    curve = [(event.step, event.value) for event in events.Scalars("reward")]
    assert curve == [(1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0), (5, 1.0), (6, 1.0)]


def test_an_identity_is_kept_on_resume_and_new_otherwise(tmp_path: Path):
    first = run_identity(tmp_path, "wandb", resumed=False)
    assert run_identity(tmp_path, "wandb", resumed=True) == first
    assert run_identity(tmp_path, "swanlab", resumed=True) != first
    copy = shutil.copytree(tmp_path, tmp_path.parent / "copy")
    forked = run_identity(copy, "wandb", resumed=True)
    assert forked != first, "two runs would write into one"
    assert run_identity(copy, "wandb", resumed=True) == forked
    assert run_identity(tmp_path, "wandb", resumed=True) == first
    assert run_identity(tmp_path, "wandb", resumed=False) != first
    (tmp_path / "wandb_id.txt").write_text("")
    assert run_identity(tmp_path, "wandb", resumed=True)


@pytest.mark.processes
def test_wandb_offline_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = LoggingConfig(report_to=["wandb"], project="test-project")
    for resumed_step in (None, 1):
        sinks = open_sinks(config, tmp_path, resumed_step=resumed_step, facts={"seed": 1})
        sinks.write(1 if resumed_step is None else 2, {"reward": 0.25})
        sinks.close(StopSignal())
        assert sinks.failures == {"wandb": 0}
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    identity = (tmp_path / "wandb_id.txt").read_text().split()[0]
    assert len(folders) == 2
    for folder in folders:  # after its identity there is a number when both starts were in one second
        assert (folder / f"run-{identity}.wandb").exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def test_wandb_that_cannot_start_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("wandb.init", lambda **_: (_ for _ in ()).throw(RuntimeError("no API key")))
    sinks = open_sinks(LoggingConfig(report_to=["wandb"]), tmp_path, resumed_step=None, facts={})
    sinks.write(1, {"reward": 0.5})
    sinks.close(StopSignal())
    assert sinks.failures == {"wandb": 1}


def two_starts(name: str, run_dir: Path) -> None:
    """Steps 1 and 2, then resumed after 1: step 2 once more, and 3."""
    config = LoggingConfig(report_to=[name], project="test-project")
    for resumed_step, steps in ((None, (1, 2)), (1, (2, 3))):
        sinks = open_sinks(config, run_dir, resumed_step=resumed_step, facts={"seed": 1, "model": {"dtype": "float32"}})
        for step in steps:
            sinks.write(step, {"reward": step / 4, "rewards/countdown/mean": 0.5, "kl": math.nan})
        sinks.close(StopSignal())
        assert sinks.failures == {name: 0}


@pytest.mark.processes
def test_trackio_continues_a_resumed_run_and_begins_another_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = f"""
import sys
import time
from pathlib import Path
from typing import Any
from grpo_trainer.observe import background_sink
from tests.trainer.test_observe_sinks import TRACKER_FINISH_S, two_starts
background_sink.FINISH_S = TRACKER_FINISH_S
for folder in ("first", "second"):
    run_dir = Path({str(tmp_path)!r}, folder, "run")
    run_dir.mkdir(parents=True)
    two_starts("trackio", run_dir)
"""
    # In a process of its own: the library reads TRACKIO_DIR when it is imported.
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, env=environment)
    with closing(sqlite3.connect(tmp_path / "trackio/test-project.db")) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    curves: dict[str, list[tuple[int, float]]] = {}
    for run, step, metrics in rows:
        assert set(json.loads(metrics)) == {"reward", "rewards/countdown/mean"}
        curves.setdefault(run, []).append((step, json.loads(metrics)["reward"]))
    assert len(curves) == 2
    assert all(curve == [(1, 0.25), (2, 0.5), (2, 0.5), (3, 0.75)] for curve in curves.values())


def test_mlflow_continues_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    two_starts("mlflow", tmp_path)
    client = MlflowClient()
    experiment = client.get_experiment_by_name("test-project")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", tmp_path.name)
    assert run.data.params == {"seed": "1", "model.dtype": "float32"}
    curve = client.get_metric_history(run.info.run_id, "reward")
    assert sorted({(point.step, point.value) for point in curve}) == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert not client.get_metric_history(run.info.run_id, "kl")


def test_names_that_mlflow_would_refuse_a_step_for_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    from grpo_trainer.observe.mlflow_sink import MlflowSink

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    facts = {"reward": {"params": {"pass@1": {"k": 1}}}}
    sink = MlflowSink(tmp_path, project="p", run_name="r", resumed=False, facts=facts)
    names = ["reward", "rewards/code/pass@1", "rewards/code//tests passed (%)", "rewards/../../x", "r" * 400]
    sink.write(1, dict.fromkeys(names, 0.5))
    client = MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("p").experiment_id])  # type: ignore[union-attr]
    changed = {"reward", "rewards/code/pass_1", "rewards/code/tests passed ___", "rewards/x", "r" * 250}
    assert run.data.metrics.keys() == changed
    assert run.data.params == {"reward.params.pass_1.k": "1"}


def test_a_step_that_mlflow_took_without_an_answer_is_the_same_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from mlflow import MlflowClient

    from grpo_trainer.observe.mlflow_sink import MlflowSink

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sink = MlflowSink(tmp_path, project="p", run_name="r", resumed=False, facts={})
    sent: list[tuple[str, float, int, int]] = []

    def log_batch(client: MlflowClient, run_id: str, *, metrics: list[Any]) -> None:
        sent.extend((point.key, point.value, point.timestamp, point.step) for point in metrics)
        time.sleep(0.002)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    for step in (1, 1, 2):
        sink.write(step, {"reward": 0.25})
    assert sent[0] == sent[1]
    assert sent[2][2] > sent[1][2]


def test_a_failed_run_is_failed_at_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = LoggingConfig(report_to=["mlflow"], project="test-project")
    sinks = open_sinks(config, tmp_path, resumed_step=None, facts={})
    sinks.close(StopSignal(), failure="ServersError: nobody answers")
    experiment = MlflowClient().get_experiment_by_name("test-project")
    assert experiment is not None
    [run] = MlflowClient().search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"


def test_mlflow_without_a_server_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sinks = open_sinks(LoggingConfig(report_to=["mlflow"]), tmp_path, resumed_step=None, facts={})
    sinks.write(1, {"reward": 0.5})
    sinks.close(StopSignal())
    assert sinks.failures == {"mlflow": 1}
    assert "MLFLOW_TRACKING_URI is not set" in caplog.text


@pytest.mark.processes
def test_swanlab_offline_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    two_starts("swanlab", tmp_path)
    identity = (tmp_path / "swanlab_id.txt").read_text().split()[0]
    folders = list((tmp_path / "swanlab").glob("run-*"))
    assert folders
    assert all(folder.name.endswith(identity) for folder in folders)


def test_a_tracker_that_is_not_installed_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_trainer.observe.sinks.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"trackio, which is not installed.*grpo-trainer\[trackio\]"):
        open_sinks(LoggingConfig(report_to=["trackio"]), tmp_path, resumed_step=None, facts={})


def test_mlflow_is_less_patient_than_by_itself_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    open_sinks(LoggingConfig(report_to=["mlflow"]), tmp_path, resumed_step=None, facts={}).close(StopSignal())
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == MLFLOW_PATIENCE["MLFLOW_HTTP_REQUEST_TIMEOUT"]


def test_trackers_hear_of_a_disk_that_is_full(tmp_path: Path):
    told: list[tuple[str, str | None]] = []
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    file = StepFile(tmp_path / "metrics.jsonl", keep_through_step=None)

    def tracker(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, write=lambda *_: None, close=lambda failure: told.append((name, failure)))

    sinks = MetricSinks(file, {name: partial(tracker, name) for name in "ab"}, in_background="b")
    with pytest.raises(OSError, match="No space left"):
        sinks.write(1, {"reward": 1.0})
    with pytest.raises(OSError, match="No space left"):
        sinks.close(StopSignal(), failure="no space")
    assert sorted(told) == [("a", "no space"), ("b", "no space")]
