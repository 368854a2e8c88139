"""Spans of the reward server, with the real SDK, the real server and a receiver that speaks its protocol."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.otlp_receiver import ReceivedSpan, Receiver, otlp_receiver
from tests.processes import Service, free_port, service
from tests.reward.plugins_only import COMMAND, PLAIN
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

GROUPS = {f"{number:032x}": f"{number:016x}" for number in (1, 2)}
HEADER = f"00-{3:032x}-{3:016x}-01"
NOT_SAMPLED = f"00-{4:032x}-{4:016x}-00"


def parent(trace_id: str) -> str:
    return f"00-{trace_id}-{GROUPS[trace_id]}-01"


def request(*parents: str | None, reward: str = "plain") -> dict:
    samples = [{"completion": "a"} | ({"traceparent": one} if one else {}) for one in parents]
    return {"rewards": [{"name": reward}], "samples": samples, "step": 7}


def command(port: int, receiver: str) -> list[str]:
    arguments = ("serve", "--port", str(port), "--workers", "1", "--plugin", PLAIN, "--otlp-endpoint", receiver)
    return [*COMMAND, *arguments]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Receiver, str]]:
    """A receiver, and the URL of a server that sends its spans there at once."""
    port, log = free_port(), tmp_path_factory.mktemp("traced") / "log"
    with otlp_receiver() as receiver:
        at_once = {"OTEL_BSP_SCHEDULE_DELAY": "20"}
        with service(command(port, receiver.url), log, port=port, environment=at_once) as server:
            server.wait_until_live()
            yield receiver, server.url


Post = tuple[str, dict, dict[str, str]]
"""Route, body and headers."""


def spans_of(traced: tuple[Receiver, str], *posts: Post) -> tuple[list[ReceivedSpan], list[int]]:
    """What the receiver got of these, and the status of each answer. Spans come in their order: it waits for a last."""
    receiver, url = traced
    known, last = len(receiver.spans), uuid.uuid4().hex
    *statuses, _ = post_all(url, *posts, ("/v1/score", request(None), {"traceparent": f"00-{last}-{5:016x}-01"}))
    wait_until(lambda: bool(receiver.of(last)), "the last span did not come")
    return receiver.spans[known:-1], statuses


def post_all(url: str, *posts: Post) -> list[int]:
    return [
        httpx.post(f"{url}{route}", json=body, headers=headers, trust_env=False, timeout=30.0).status_code
        for route, body, headers in posts
    ]


def test_each_group_of_a_request_gets_a_span_below_its_own(tmp_path: Path):
    one, other = GROUPS
    body = request(parent(one), parent(one), parent(other), None)
    port = free_port()
    with otlp_receiver() as receiver:
        with service(command(port, receiver.url), tmp_path / "log", port=port) as server:
            server.wait_until_live()
            assert post_all(server.url, ("/v1/score", body, {"traceparent": HEADER})) == [200]
        spans = receiver.spans  # the rest of which the server sends at its end
    assert {span.service for span in spans} == {"grpo-reward"}
    assert {span.name for span in spans} == {"POST /v1/score"}
    found = {span.trace_id: span for span in spans}
    assert len(found) == len(spans) == 3
    assert {trace_id: found[trace_id].parent_id for trace_id in GROUPS} == GROUPS
    assert found[f"{3:032x}"].parent_id == f"{3:016x}"
    assert [found[trace_id].attributes["grpo.samples"] for trace_id in (one, other, f"{3:032x}")] == [2, 1, 1]
    span = found[one]
    assert span.attributes["grpo.scores.ok"] == 2
    assert span.attributes["grpo.step"] == 7
    assert 0 < span.end_ns - span.start_ns < 30e9


def test_refusals_other_routes_and_clients_that_do_not_trace(traced: tuple[Receiver, str]):
    spans, statuses = spans_of(
        traced,
        ("/v1/score", request(None, reward="no_such"), {}),
        ("/v1/score", request(None), {"traceparent": "rubbish"}),
        ("/get_reward?rewards=plain", {"query": ["a"], "prompts": [""], "labels": [""]}, {}),
        ("/v1/score", request(None), {"traceparent": NOT_SAMPLED}),
    )
    assert statuses == [422, 200, 200, 200]
    assert [(span.name, span.parent_id) for span in spans] == [
        ("POST /v1/score", ""),
        ("POST /v1/score", ""),
        ("POST /get_reward", ""),
    ], "the fourth client said that its trace is not recorded"
    assert len({span.trace_id for span in spans}) == 3
    assert "no reward no_such" in spans[0].error
    assert "grpo.scores.ok" not in spans[0].attributes
    assert [span.error for span in spans[1:]] == ["", ""]


def test_what_a_client_sends_cannot_spoil_the_spans_of_others(traced: tuple[Receiver, str]):
    odd = request(None) | {"step": 2**63}
    named = request(None, reward="x" * 1_000_000)
    spans, statuses = spans_of(traced, *(("/v1/score", body, {}) for body in (request(None), odd, named)))
    assert statuses == [200, 200, 422]
    assert [span.attributes.get("grpo.step") for span in spans] == [7, str(2**63), 7]
    assert max(len(str(span.attributes)) for span in spans) < 1000


def test_a_receiver_that_is_gone_costs_neither_scores_nor_the_end(tmp_path: Path):
    port, log = free_port(), tmp_path / "log"
    with service(command(port, f"http://127.0.0.1:{free_port()}"), log, port=port) as server:
        server.wait_until_live()
        assert score(server).status_code == 200
        assert server.stop(timeout_s=25.0) == 0


def score(server: Service) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/score", json=request(None), trust_env=False, timeout=30.0)


def test_what_is_no_traceparent_in_a_sample_is_refused(traced: tuple[Receiver, str]):
    _, statuses = spans_of(traced, ("/v1/score", request("00-zz-1-01"), {}))
    assert statuses == [422]


def test_without_the_libraries_the_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys

    from grpo_reward.executors.base import ExecutorUnavailable
    from grpo_reward.tracing import Tracing

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ExecutorUnavailable, match=r"grpo-reward\[tracing\]"):
        Tracing("http://127.0.0.1:4318")


def test_requests_with_very_many_parents_make_one_span(traced: tuple[Receiver, str]):
    parents = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 131)]
    spans, _ = spans_of(traced, ("/v1/score", request(*parents), {"traceparent": HEADER}))
    assert [(span.trace_id, span.attributes["grpo.samples"]) for span in spans] == [(f"{3:032x}", 130)]
