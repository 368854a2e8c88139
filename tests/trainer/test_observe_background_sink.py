"""A tracker's server that is slow, hangs, dies or comes back: the run does not wait for it, and loses little."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waiting import wait_until

from grpo_trainer.config.observing import LoggingConfig
from grpo_trainer.observe import background_sink
from grpo_trainer.observe.background_sink import BackgroundSink, finish
from grpo_trainer.observe.sinks import MetricSinks, open_sinks
from grpo_trainer.ranks.stop_signal import STOP_SIGNALS, StopSignal

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0


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
        # Waits here: later it would be as patient as MLflow is by itself, and its warnings would reach other tests.
        for thread in threading.enumerate():
            if thread.name == "sink-mlflow":
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), "a tracker's thread outlives its test"
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
        assert "mlflow: has not closed in time" in caplog.text
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
        for name in ("FIRST_PAUSE_S", "LAST_PAUSE_S"):
            monkeypatch.setattr(background_sink, name, 0.001)
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
        from grpo_trainer.observe.mlflow_sink import MlflowSink

        monkeypatch.setattr(background_sink, "FINISH_S", 1000.0)
        monkeypatch.setattr(background_sink, "HANGS_S", 0.2)
        opener = partial(MlflowSink, tmp_path, project="p", run_name="r", resumed=False, facts={})
        sink = BackgroundSink("mlflow", opener, failed=lambda *_: None)
        sink.write(1, {"reward": 0.5})
        wait_until(lambda: tracking.steps == [1], "the first step did not arrive")
        time.sleep(0.5)
        wait_until(lambda: not sink.hangs(), "it seems to hang, and has nothing to do")
        tracking.answers.clear()
        sink.write(2, {"reward": 0.5})
        wait_until(sink.hangs, "nobody sees that it hangs")
        finish([sink], StopSignal(), failure=None)
        assert sink.lost_steps == 1
        assert "mlflow: has not closed in time" in caplog.text

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
            end, ending = BackgroundSink.end, threading.Event()

            def end_and_tell(sink: BackgroundSink, failure: str | None) -> None:
                end(sink, failure)
                ending.set()

            monkeypatch.setattr(BackgroundSink, "end", end_and_tell)

            def stop_once_it_ends() -> None:
                assert ending.wait(60), "the run did not end"
                os.kill(os.getpid(), signal.SIGTERM)

            stopping = threading.Thread(target=stop_once_it_ends)
            stopping.start()
            try:
                sinks.close(stop)
            finally:
                stopping.join()  # before the handlers are gone
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


def test_trackers_hear_of_a_failure_that_ends_the_other_ranks_first():
    told: list[tuple[str, str | None]] = []
    stop = StopSignal()
    tracker = SimpleNamespace(
        name="slow", write=lambda *_: time.sleep(1.0), close=lambda failure: told.append(("slow", failure))
    )
    sink = background_sink.BackgroundSink("slow", lambda: tracker, failed=lambda *_: None)
    sink.write(1, {})
    threading.Timer(0.2, lambda: setattr(stop, "requested", True)).start()  # torchrun's, when another rank is gone
    background_sink.finish([sink], stop, failure="nobody answers")
    assert (told, sink.lost_steps) == ([("slow", "nobody answers")], 0)
