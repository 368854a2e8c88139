"""Experiment trackers, with their real libraries and without a network."""

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_trainer.config import LoggingConfig
from grpo_trainer.errors import UsageError
from grpo_trainer.observe import background_sink
from grpo_trainer.observe.run_identity import run_identity
from grpo_trainer.observe.sinks import MLFLOW_PATIENCE, MetricSinks, open_sinks
from grpo_trainer.stop_signal import STOP_SIGNALS, StopSignal


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
    assert run_identity(tmp_path, "wandb", resumed=False) != first


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
    identity = (tmp_path / "wandb_id.txt").read_text().strip()
    assert folders
    assert all(folder.name.endswith(identity) for folder in folders)
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))) >= 1
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


def test_trackio_continues_a_resumed_run_and_begins_another_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = f"""
import sys
from pathlib import Path
from tests.trainer.test_observe_sinks import two_starts
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


def test_mlflow_without_a_server_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sinks = open_sinks(LoggingConfig(report_to=["mlflow"]), tmp_path, resumed_step=None, facts={})
    sinks.write(1, {"reward": 0.5})
    sinks.close(StopSignal())
    assert sinks.failures == {"mlflow": 1}
    assert "MLFLOW_TRACKING_URI is not set" in caplog.text


def test_swanlab_offline_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    two_starts("swanlab", tmp_path)
    identity = (tmp_path / "swanlab_id.txt").read_text().strip()
    folders = list((tmp_path / "swanlab").glob("run-*"))
    assert folders
    assert all(folder.name.endswith(identity) for folder in folders)


def test_a_tracker_that_is_not_installed_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_trainer.observe.sinks.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"trackio, which is not installed.*grpo-trainer\[trackio\]"):
        open_sinks(LoggingConfig(report_to=["trackio"]), tmp_path, resumed_step=None, facts={})


class TrackingServer(ThreadingHTTPServer):
    """As much of MLflow's server as a run speaks to. It can be told to answer nothing, or to refuse steps."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TrackingRoutes)
        self.steps: list[int] = []
        self.answers = threading.Event()
        self.answers.set()
        self.refusals = 0
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def die(self) -> None:
        """Nobody listens at the port from here on."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class TrackingRoutes(BaseHTTPRequestHandler):
    server: TrackingServer

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.server.answers.wait(60)
        code, route = 200, self.path.partition("?")[0]
        info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING", "lifecycle_stage": "active"}
        if route.endswith("log-batch") and self.server.refusals:
            self.server.refusals -= 1
            code = 400
        elif route.endswith("log-batch"):
            self.server.steps += [metric["step"] for metric in body.get("metrics", ())]
        answer = {
            "experiment": {"experiment_id": "1", "name": "test-project", "lifecycle_stage": "active"},
            "run": {"info": info, "data": {}},
            "run_info": info,
        }
        data = json.dumps(answer if code == 200 else {"error_code": "BAD_REQUEST", "message": "refused"}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.timeout(100)
class TestWhileTheServerOfATracker:
    """A real client of MLflow, whose patience is longer than the test's: a loop that waits for it never comes back."""

    @pytest.fixture
    def tracking(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrackingServer]:
        server = TrackingServer()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1000")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.answers.set()
        server.die()

    def sinks(self, run_dir: Path, *others: str) -> MetricSinks:
        config = LoggingConfig(report_to=["mlflow", *others], project="test-project")
        return open_sinks(config, run_dir, resumed_step=None, facts={})

    def write(self, sinks: MetricSinks, *steps: int) -> None:
        for step in steps:
            sinks.write(step, {"reward": 0.5})

    def records(self, run_dir: Path) -> list[dict]:
        return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]

    def test_is_slow_every_step_arrives_in_order_before_the_end(self, tracking: TrackingServer, tmp_path: Path):
        tracking.answers.clear()
        sinks = self.sinks(tmp_path)
        self.write(sinks, *range(1, 101))
        assert tracking.steps == []
        tracking.answers.set()
        sinks.close(StopSignal())
        assert tracking.steps == list(range(1, 101))
        assert (sinks.failures, sinks.lost_steps) == ({"mlflow": 0}, {"mlflow": 0})

    def test_hangs_the_run_goes_on_and_ends(
        self,
        tracking: TrackingServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(background_sink, "FINISH_S", 0.5)
        sinks = self.sinks(tmp_path)
        self.write(sinks, 1)
        wait_until(lambda: tracking.steps == [1], "the first step did not arrive")
        tracking.answers.clear()
        self.write(sinks, *range(2, 52))
        sinks.close(StopSignal())
        assert not tracking.answers.is_set()
        assert sinks.lost_steps == {"mlflow": 50}
        assert [record["step"] for record in self.records(tmp_path)] == list(range(1, 52))
        assert "mlflow: does not end" in caplog.text
        assert "mlflow: 50 steps did not arrive" in caplog.text

    def test_is_dead_from_the_start_nothing_waits_for_it(self, tracking: TrackingServer, tmp_path: Path):
        tracking.die()
        sinks = self.sinks(tmp_path)
        self.write(sinks, 1, 2)
        sinks.close(StopSignal())
        assert (sinks.failures, sinks.lost_steps) == ({"mlflow": 1}, {"mlflow": 2})

    def test_dies_for_good_the_others_go_on(
        self,
        tracking: TrackingServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sinks = self.sinks(tmp_path, "tensorboard")
        self.write(sinks, 1)
        wait_until(lambda: tracking.steps == [1], "the first step did not arrive")
        tracking.die()
        self.write(sinks, *range(2, 21))
        wait_until(lambda: sinks.failures["mlflow"] > 0, "the second step did not fail")
        assert sinks.lost_steps == {"mlflow": 0}, "it has more tries"
        monkeypatch.setattr(background_sink, "FINISH_S", 0.5)
        sinks.close(StopSignal())
        assert sinks.failures["tensorboard"] == 0
        assert sinks.lost_steps == {"mlflow": 19}
        assert "mlflow: 19 steps did not arrive" in caplog.text
        events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
        assert [event.step for event in events.Scalars("reward")] == list(range(1, 21))

    def test_is_started_again_it_misses_nothing(
        self, tracking: TrackingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(background_sink, "FIRST_PAUSE_S", 0.001)
        sinks = self.sinks(tmp_path)
        tracking.refusals = background_sink.TRIES - 1
        self.write(sinks, *range(1, 51))
        wait_until(lambda: 50 in tracking.steps, "it was switched off")
        sinks.close(StopSignal())
        assert tracking.steps == list(range(1, 51))
        assert sinks.lost_steps == {"mlflow": 0}

    def test_is_started_again_while_the_run_ends_it_misses_nothing(self, tracking: TrackingServer, tmp_path: Path):
        sinks = self.sinks(tmp_path)
        tracking.refusals = 2
        self.write(sinks, 1, 2, 3)
        sinks.close(StopSignal())
        assert tracking.steps == [1, 2, 3]
        assert (sinks.failures, sinks.lost_steps) == ({"mlflow": 2}, {"mlflow": 0})

    def test_is_away_it_is_left_alone_for_longer_and_longer(
        self, tracking: TrackingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(background_sink, "FIRST_PAUSE_S", 0.1)
        sinks = self.sinks(tmp_path)
        tracking.refusals = 5
        began_s = time.monotonic()
        self.write(sinks, 1)
        wait_until(lambda: tracking.steps == [1], "it was switched off")
        assert time.monotonic() - began_s >= 0.1 + 0.2 + 0.4 + 0.8 + 1.6
        sinks.close(StopSignal())

    def test_refuses_two_steps_it_gets_the_others(
        self, tracking: TrackingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(background_sink, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(background_sink, "LAST_PAUSE_S", 0.001)
        sinks = self.sinks(tmp_path)
        tracking.refusals = 2 * background_sink.TRIES
        self.write(sinks, *range(1, 11))
        wait_until(lambda: 10 in tracking.steps, "it was switched off")
        sinks.close(StopSignal())
        assert tracking.steps == list(range(3, 11))
        assert (sinks.failures, sinks.lost_steps) == ({"mlflow": 2 * background_sink.TRIES}, {"mlflow": 2})

    def test_hangs_what_has_no_room_is_counted(
        self,
        tracking: TrackingServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(background_sink, "MAX_WAITING_STEPS", 3)
        tracking.answers.clear()
        sinks = self.sinks(tmp_path)
        self.write(sinks, *range(1, 8))
        assert sinks.lost_steps == {"mlflow": 4}
        tracking.answers.set()
        sinks.close(StopSignal())
        assert tracking.steps == [1, 2, 3]
        assert [record.get("sinks/mlflow_lost_steps", 0) for record in self.records(tmp_path)] == [0, 0, 0, 0, 1, 2, 3]
        assert caplog.text.count("mlflow: 3 steps wait already") == 3, "the 1st, 2nd and 4th are logged"

    def test_has_hung_for_a_while_the_end_of_the_run_does_not_wait_for_it(
        self,
        tracking: TrackingServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(background_sink, "FINISH_S", 1000.0)
        monkeypatch.setattr(background_sink, "HANGS_S", 0.2)
        sinks = self.sinks(tmp_path)
        self.write(sinks, 1)
        wait_until(lambda: tracking.steps == [1], "the first step did not arrive")
        (sink,) = sinks._background
        wait_until(lambda: sink._called_at_s is None, "the first step was not taken")
        time.sleep(0.5)
        assert not sink.hangs(), "it has nothing to do"
        tracking.answers.clear()
        self.write(sinks, 2)
        wait_until(sink.hangs, "nobody sees that it hangs")
        sinks.close(StopSignal())
        assert sinks.lost_steps == {"mlflow": 1}
        assert "mlflow: does not end" in caplog.text

    def test_hangs_a_stop_signal_ends_the_wait_for_it(
        self, tracking: TrackingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(background_sink, "FINISH_S", 1000.0)
        before, stop = [signal.getsignal(number) for number in STOP_SIGNALS], StopSignal()
        stop.install()
        try:
            tracking.answers.clear()
            sinks = self.sinks(tmp_path)
            self.write(sinks, 1)
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            sinks.close(stop)
            assert stop.requested
        finally:
            for number, handler in zip(STOP_SIGNALS, before, strict=True):
                signal.signal(number, handler)
        assert sinks.lost_steps == {"mlflow": 1}

    def test_is_slow_what_waits_arrives_after_a_stop_as_well(self, tracking: TrackingServer, tmp_path: Path):
        stop = StopSignal()
        stop.requested = True
        tracking.answers.clear()
        sinks = self.sinks(tmp_path)
        self.write(sinks, 1, 2)
        threading.Timer(0.5, tracking.answers.set).start()
        sinks.close(stop)
        assert tracking.steps == [1, 2]


def test_mlflow_is_less_patient_than_by_itself_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "")  # so that it is put back afterwards
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    open_sinks(LoggingConfig(report_to=["mlflow"]), tmp_path, resumed_step=None, facts={}).close(StopSignal())
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == MLFLOW_PATIENCE["MLFLOW_HTTP_REQUEST_TIMEOUT"]
