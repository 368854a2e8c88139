"""The trainer's own routes over a real socket: health, info, metrics; the live page has tests of its own."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.trainer.fake_time import FakeTime

from grpo_proto import PROTOCOL_VERSION, ErrorBody, Health, TrainerInfo
from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.errors import UnavailableError, UsageError
from grpo_trainer.observe.live_view import LiveView
from grpo_trainer.observe.routes import openapi_text
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import serve_status

OPENAPI = Path(__file__).parents[2] / "services/trainer/openapi.json"
ANY_PORT = ServerConfig(port=0)


@pytest.fixture
def status() -> RunStatus:
    return RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)


@pytest.fixture
def client(status: RunStatus) -> Iterator[httpx.Client]:
    with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        yield client


def health(client: httpx.Client, route: str) -> tuple[int, Health]:
    answer = client.get(route)
    return answer.status_code, Health.model_validate_json(answer.content)


def test_alive_from_the_start_and_ready_from_the_first_push(client: httpx.Client, status: RunStatus):
    assert health(client, "/livez") == (200, Health(ok=True))
    assert health(client, "/readyz") == (503, Health(ok=False, detail="not training: starting"))
    status.pushed(1, seconds=0.1, num_bytes=10)
    assert health(client, "/readyz") == (200, Health(ok=True))
    status.ended(None)
    assert health(client, "/readyz")[0] == 503


def test_a_loop_without_a_heartbeat_is_dead_until_the_next_one():
    clock = FakeTime()
    status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0, now=clock)
    with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        status.pushed(1, seconds=0.1, num_bytes=10)
        status.enter_stage("train")
        clock.now += 1000
        code, body = health(client, "/livez")
        assert code == 503
        assert "no heartbeat" in (body.detail or "")
        assert "in stage train of step 1" in (body.detail or "")
        assert health(client, "/readyz")[0] == 503
        status.beat()
        assert health(client, "/livez")[0] == 200


def test_a_stage_that_cannot_beat_has_a_bound_of_its_own():
    """A checkpoint of half a terabyte takes longer than any step."""
    clock = FakeTime()
    status = RunStatus("demo", heartbeat_bound_s=0.1, silent_stages={"save": 600.0}, now=clock)
    with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        bound = ("grpo_trainer_heartbeat_bound_seconds",)
        status.enter_stage("save")
        clock.now += 0.3
        assert health(client, "/livez")[0] == 200
        assert samples_of(client)[bound] == 600.0
        status.enter_stage("wait")
        assert samples_of(client)[bound] == 0.1
        clock.now += 0.3
        assert "(bound 0.1 s), in stage wait" in health(client, "/livez")[1].detail


class TestWhileItStarts:
    """Before the loop has a heartbeat."""

    def test_a_silent_part_has_a_limit_in_place_of_the_heartbeat(self):
        clock = FakeTime()
        status = RunStatus("demo", heartbeat_bound_s=60.0, now=clock)
        with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
            status.enter_phase("loading the model", limit_s=600.0)
            clock.now += 599
            assert health(client, "/livez") == (200, Health(ok=True))
            assert ("grpo_trainer_heartbeat_timestamp_seconds",) not in samples_of(client)
            code, body = health(client, "/readyz")
            assert code == 503
            assert re.fullmatch(r"loading the model; since [-\d]+ [:\d]+Z, at most until [-\d]+ [:\d]+Z", body.detail)
            status.enter_phase("loading the checkpoint", limit_s=600.0)
            clock.now += 601
            code, body = health(client, "/livez")
            assert code == 503
            assert body.detail.startswith("past its limit: loading the checkpoint; since ")
            assert ("grpo_trainer_heartbeat_timestamp_seconds",) in samples_of(client)
            status.enter_stage("push")
            assert health(client, "/livez") == (200, Health(ok=True))
            assert health(client, "/readyz") == (503, Health(ok=False, detail="not training: push"))

    def test_a_wait_has_to_beat(self):
        clock = FakeTime()
        status = RunStatus("demo", heartbeat_bound_s=60.0, now=clock)
        with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
            status.enter_phase("waiting for 2 servers", limit_s=600.0, silent=False)
            status.still_waiting("waiting for the server at http://b", "connection refused")
            code, body = health(client, "/readyz")
            assert code == 503
            assert body.detail.startswith("waiting for the server at http://b: connection refused; since ")
            assert client.get("/info").json()["stage"] == "waiting for the server at http://b"
            clock.now += 1000
            assert health(client, "/livez")[0] == 503
            status.still_waiting("waiting for the server at http://b", None)
            assert health(client, "/livez")[0] == 200

    def test_how_long_the_run_is_comes_later(self, client: httpx.Client, status: RunStatus):
        unknown = RunStatus("demo", heartbeat_bound_s=60.0)
        with serve_status(unknown, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as early:
            assert ("grpo_trainer_max_steps",) not in samples_of(early)
            unknown.know_run(max_steps=7, step=3)
            assert samples_of(early)["grpo_trainer_max_steps",] == 7
            assert samples_of(early)["grpo_trainer_step",] == 3

    def test_the_page_hears_what_is_waited_for(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("GRPO_API_TOKEN", "correct-horse-battery")
        status = RunStatus("demo", heartbeat_bound_s=60.0)
        status.enter_phase("waiting for x", limit_s=600.0, silent=False)
        status.still_waiting("waiting for x", "refused correct-horse-battery")
        now = LiveView(status).sections()["now"]
        assert (now["stage"], now["waits"]["for"]) == ("waiting for x", "waiting for x")
        assert now["waits"]["until_s"] == pytest.approx(now["stage_since_s"] + 600.0, abs=1.0)
        assert "correct-horse" not in now["waits"]["reason"]
        status.enter_stage("push")
        assert LiveView(status).sections()["now"]["waits"] is None

    def test_the_first_reason_of_an_end_stays(self, status: RunStatus):
        status.ended("RunError: first")
        status.ended(None)
        assert status.snapshot().end_reason == "RunError: first"


def test_many_slow_clients_do_not_take_the_probes_away(client: httpx.Client):
    """More connections than the server keeps idle, each with a request that does not end."""
    with ExitStack() as stack:
        for _ in range(200):
            slow = stack.enter_context(socket.create_connection((client.base_url.host, client.base_url.port)))
            with suppress(ConnectionResetError, BrokenPipeError):
                slow.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        assert health(client, "/livez") == (200, Health(ok=True))
        assert client.get("/metrics").status_code == 200


def test_a_dead_background_thread_is_a_dead_trainer(client: httpx.Client, status: RunStatus):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(30,))
    thread.start()
    with status.watching("the event loop", thread.is_alive):
        assert health(client, "/livez")[0] == 200
        stop.set()
        thread.join()
        assert health(client, "/livez") == (503, Health(ok=False, detail="the event loop is dead"))
    assert health(client, "/livez")[0] == 200  # it ended with the run


def test_info_says_how_far_the_run_is(client: httpx.Client, status: RunStatus):
    status.pushed(4, seconds=0.1, num_bytes=10)
    status.step_done(3, {}, seconds_per_stage={})
    status.enter_stage("eval")
    info = TrainerInfo.model_validate_json(client.get("/info").content)
    assert (info.run, info.step, info.max_steps, info.policy_version, info.stage) == ("demo", 3, 10, 4, "eval")
    assert info.protocol_version == PROTOCOL_VERSION


def samples_of(client: httpx.Client) -> dict[tuple, float]:
    text = client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_follow_the_run(client: httpx.Client, status: RunStatus):
    before = samples_of(client)
    assert before["grpo_trainer_step",] == 0
    assert ("grpo_trainer_reward",) not in before, "a reward that was never measured is absent, not 0"
    status.pushed(2, seconds=0.5, num_bytes=1000)
    status.dropped("stale", 8)
    metrics = {"reward": 0.25, "accuracy": 0.125}
    seconds = {"train": 3.5, "wait": 1.0}
    status.step_done(1, metrics, seconds_per_stage=seconds, staleness=[0, 0, 1, 3, 99], num_tokens=640)
    after = samples_of(client)
    prefix = "grpo_trainer"
    assert after[f"{prefix}_step",] == 1
    assert after[f"{prefix}_max_steps",] == 10
    assert after[f"{prefix}_policy_version",] == 2
    assert after[f"{prefix}_reward",] == 0.25
    assert after[f"{prefix}_accuracy",] == 0.125
    assert after[f"{prefix}_stage_seconds_total", "train"] == 3.5
    assert after[f"{prefix}_tokens_total",] == 640
    assert after[f"{prefix}_weight_push_seconds",] == 0.5
    assert after[f"{prefix}_weight_push_bytes_total",] == 1000
    assert after[f"{prefix}_samples_dropped_total", "stale"] == 8
    assert after[f"{prefix}_heartbeat_timestamp_seconds",] == pytest.approx(time.time(), abs=30)
    buckets = {key[1]: value for key, value in after.items() if key[0] == f"{prefix}_sample_staleness_bucket"}
    assert buckets == {"0.0": 2, "1.0": 3, "2.0": 3, "4.0": 4, "8.0": 4, "16.0": 4, "+Inf": 5}
    assert after[f"{prefix}_sample_staleness_count",] == 5
    assert after[f"{prefix}_sample_staleness_sum",] == 103


@pytest.mark.parametrize(
    ("method", "path", "code", "type"),
    [
        ("POST", "/", 405, "method_not_allowed"),
        ("POST", "/events", 405, "method_not_allowed"),
        ("GET", "/live.js", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"),
        ("GET", "/livez/", 404, "not_found"),
        ("POST", "/livez", 405, "method_not_allowed"),
        ("DELETE", "/info", 405, "method_not_allowed"),
    ],
)
def test_nothing_else_can_be_asked(client: httpx.Client, method: str, path: str, code: int, type: str):
    answer = client.request(method, path)
    assert answer.status_code == code
    body = ErrorBody.model_validate_json(answer.content)
    assert body.error.type == type
    assert "/metrics" in (body.error.hint or "")


def test_a_port_in_use_is_one_readable_message(status: RunStatus):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            serve_status(status, ServerConfig(port=port)).__enter__()
    assert "server.port" in (caught.value.hint or "")


def test_an_address_that_is_not_ours_is_one_readable_message(status: RunStatus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    with pytest.raises(UsageError, match="cannot listen on"):
        serve_status(status, ServerConfig(host="no-such-host.invalid", port=0)).__enter__()


def test_the_port_is_free_and_the_thread_gone_afterwards(status: RunStatus):
    with serve_status(status, ANY_PORT) as server:
        assert httpx.get(f"{server.url}/livez", trust_env=False).status_code == 200
    with serve_status(status, ServerConfig(port=server.port)):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "status-server"]


def test_the_committed_document_is_that_of_the_routes():
    assert json.loads(OPENAPI.read_text()) == json.loads(openapi_text()), (
        "renew it: python -m grpo_trainer.observe.routes > services/trainer/openapi.json"
    )


def test_the_bound_is_that_of_the_stage_whose_heartbeat_is_old(monkeypatch: pytest.MonkeyPatch):
    clock = FakeTime()
    status = RunStatus("r", heartbeat_bound_s=900, silent_stages={"save": 3600}, now=clock)
    status.enter_stage("save")
    clock.now += 1000
    snapshot = status.snapshot

    def and_the_loop_goes_on() -> Any:
        state = snapshot()
        status.enter_stage("wait")
        return state

    monkeypatch.setattr(status, "snapshot", and_the_loop_goes_on)
    assert status.problem() is None
