"""The trainer's own routes over a real socket: health, info, metrics; the live page has tests of its own."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from grpo_proto import ErrorBody, Health, TrainerInfo
from grpo_trainer.config import ServerConfig
from grpo_trainer.errors import UsageError
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
    status.set_ready(True)
    assert health(client, "/readyz") == (200, Health(ok=True))
    status.set_ready(False)
    assert health(client, "/readyz")[0] == 503


def test_a_loop_without_a_heartbeat_is_dead_until_the_next_one():
    status = RunStatus("demo", max_steps=10, heartbeat_bound_s=0.2)
    with serve_status(status, ANY_PORT) as server, httpx.Client(base_url=server.url, trust_env=False) as client:
        status.set_ready(True)
        status.enter_stage("train")
        deadline = time.monotonic() + 5
        while health(client, "/livez")[0] == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        code, body = health(client, "/livez")
        assert code == 503
        assert "no heartbeat" in (body.detail or "")
        assert "in stage train of step 1" in (body.detail or "")
        assert health(client, "/readyz")[0] == 503
        status.beat()
        assert health(client, "/livez")[0] == 200


def test_a_dead_background_thread_is_a_dead_trainer(client: httpx.Client, status: RunStatus):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(30,))
    thread.start()
    status.watch("the event loop", thread.is_alive)
    assert health(client, "/livez")[0] == 200
    stop.set()
    thread.join()
    assert health(client, "/livez") == (503, Health(ok=False, detail="the event loop is dead"))


def test_info_says_how_far_the_run_is(client: httpx.Client, status: RunStatus):
    status.pushed(4, seconds=0.1, num_bytes=10)
    status.step_done(3, {}, seconds_per_stage={})
    status.enter_stage("eval")
    info = TrainerInfo.model_validate_json(client.get("/info").content)
    assert (info.run, info.step, info.max_steps, info.policy_version, info.stage) == ("demo", 3, 10, 4, "eval")
    assert info.protocol_version == 1


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
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            serve_status(status, ServerConfig(port=port)).__enter__()
    assert "server.port" in (caught.value.hint or "")


def test_an_address_that_is_not_ours_is_one_readable_message(status: RunStatus):
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
