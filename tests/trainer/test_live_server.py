"""The live page and its events over a real socket: what they send, who may see them, clients that misbehave."""

import base64
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from typing import Any

import httpx
import pytest

from grpo_proto import ErrorBody
from grpo_proto.server.loopback_names import host_name
from grpo_trainer.config.observing import ServerConfig
from grpo_trainer.errors import UsageError
from grpo_trainer.observe import live_page, server
from grpo_trainer.observe.live_events import MAX_CLIENTS
from grpo_trainer.observe.live_guard import LiveGuard
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.server import StatusServer, serve_status

ANY_PORT = ServerConfig(port=0)
OPEN_ROUTES = ("/livez", "/info", "/metrics")
TOKEN = "correct-horse-battery"
OTHER_TOKEN = "of-the-next-one"
PATIENCE_S = 20.0
EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.fixture
def status() -> RunStatus:
    return RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)


@pytest.fixture
def running(status: RunStatus) -> Iterator[StatusServer]:
    with serve_status(status, ANY_PORT) as running:
        yield running


class Stream:
    """One client of /events, open while the context lasts."""

    def __init__(self, url: str, stack: ExitStack):
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=PATIENCE_S))
        self.response = stack.enter_context(client.stream("GET", f"{url}/events"))
        self._lines = self.response.iter_lines()

    def next(self) -> tuple[str, Any]:
        """(event, data) of the next event. Raises StopIteration at the stream's end."""
        kind = ""
        while True:
            name, _, value = next(self._lines).partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)

    def until(self, kind: str) -> Any:
        while True:
            found, data = self.next()
            if found == kind:
                return data


def test_the_page_is_one_small_document_that_may_load_nothing(running: StatusServer):
    answer = httpx.get(f"{running.url}/", trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert len(answer.content) < 150_000
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "/*SCRIPT*/" not in answer.text
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in answer.text
    assert "innerHTML" not in answer.text, "texts of others go through textContent"


def test_the_policy_names_the_script_that_is_in_the_page():
    document, policy = live_page.page()
    script = document.decode().partition("<script>")[2].rpartition("</script>")[0]
    assert f"script-src 'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}';" in policy
    assert "</script" not in script


def test_a_page_gets_everything_once_and_then_what_has_changed(running: StatusServer, status: RunStatus):
    status.step_done(1, {"reward": 0.25}, seconds_per_stage={})
    with ExitStack() as stack:
        stream = Stream(running.url, stack)
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        hello = stream.until("hello")
        assert hello["curves"]["reward"]["y"] == [0.25]
        assert hello["sections"]["now"]["step"] == 1
        status.step_done(2, {"reward": 0.5}, seconds_per_stage={})
        update = stream.until("update")
        assert [(step["step"], step["values"]) for step in update["steps"]] == [(2, {"reward": 0.5})]
        assert update["steps"][0]["sequence"] > hello["sequence"]
        assert update["sections"]["now"]["step"] == 2
        assert "run" not in update["sections"], "what has not changed is not sent again"


def test_two_pages_get_the_same_update_and_a_late_one_everything(running: StatusServer, status: RunStatus):
    with ExitStack() as stack:
        first, second = Stream(running.url, stack), Stream(running.url, stack)
        first.until("hello")
        second.until("hello")
        status.step_done(1, {"reward": 0.25}, seconds_per_stage={})
        assert first.until("update")["steps"] == second.until("update")["steps"]
        assert Stream(running.url, stack).until("hello")["curves"]["reward"]["y"] == [0.25]


def test_the_end_of_a_run_ends_the_streams_at_once_and_says_why(status: RunStatus, caplog: pytest.LogCaptureFixture):
    with ExitStack() as stack:
        with serve_status(status, ANY_PORT) as running:
            stream = Stream(running.url, stack)
            stream.until("hello")
            status.ended("RunError: the reward server could not score")
        assert stream.until("bye")["reason"] == "RunError: the reward server could not score"
        with pytest.raises(StopIteration):
            stream.next()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_last_steps_and_warnings_come_before_the_end(status: RunStatus):
    with ExitStack() as stack:
        with serve_status(status, ANY_PORT) as running:
            stream = Stream(running.url, stack)
            stream.until("hello")
            status.show("warnings", lambda: [{"level": "warning", "text": "lost"}])
            status.step_done(10, {"reward": 0.75}, seconds_per_stage={})
            status.ended(None)
        steps, sections = [], {}
        while (event := stream.next())[0] != "bye":
            steps += event[1].get("steps", [])
            sections |= event[1].get("sections", {})
    assert [(one["step"], one["values"]["reward"]) for one in steps] == [(10, 0.75)]
    assert sections["now"]["step"] == 10
    assert sections["warnings"][0]["text"] == "lost"


def test_more_pages_than_there_are_places_are_told_so_and_places_are_given_back(running: StatusServer):
    with ExitStack() as stack:
        streams = [Stream(running.url, stack) for _ in range(MAX_CLIENTS)]
        for stream in streams:
            stream.until("hello")
        refused = httpx.get(f"{running.url}/events", trust_env=False)
        assert refused.status_code == 503
        error = ErrorBody.model_validate_json(refused.content).error
        assert (error.type, error.retryable) == ("busy", True)
        assert httpx.get(f"{running.url}/livez", trust_env=False).status_code == 200
    wait_for_a_place(running)


@pytest.mark.processes
def test_clients_that_do_not_read_lose_their_places(
    running: StatusServer, status: RunStatus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(server.ImpatientConnection, "unread_limit_s", 10 * PATIENCE_S)
    status.show("facts", lambda: f"{time.monotonic()} {'x' * 8_000_000}")
    with ExitStack() as stack:
        for _ in range(MAX_CLIENTS):
            lazy = stack.enter_context(socket.socket())
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((running.host, running.port))
            lazy.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until_full(running)
        monkeypatch.setattr(server.ImpatientConnection, "unread_limit_s", 1.0)
        wait_for_a_place(running)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def wait_until_full(running: StatusServer) -> None:
    wait_for_status(running, 503)


def wait_for_a_place(running: StatusServer) -> None:
    wait_for_status(running, 200)


def wait_for_status(running: StatusServer, status_code: int) -> None:
    """Of /events, to a client that goes away at once."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with ExitStack() as stack:
            code = Stream(running.url, stack).response.status_code
        if code == status_code:
            return
        time.sleep(0.05)
    raise AssertionError(f"/events answers {code}, never {status_code}")


class TestWhoMaySeeIt:
    """`0.0.0.0` stands for every address that other machines reach."""

    @pytest.fixture
    def outside(self, status: RunStatus, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        monkeypatch.setenv("GRPO_API_TOKEN", TOKEN)
        monkeypatch.setenv("GRPO_API_TOKEN_ALSO", OTHER_TOKEN)
        with serve_status(status, ServerConfig(host=EVERYWHERE, port=0)) as running:
            yield f"http://127.0.0.1:{running.port}"

    @pytest.mark.parametrize("path", ["/", "/events"])
    def test_off_loopback_the_token_is_needed(self, outside: str, path: str):
        answer = httpx.get(outside + path, trust_env=False)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert ErrorBody.model_validate_json(answer.content).error.type == "unauthorized"

    @pytest.mark.parametrize("route", OPEN_ROUTES)
    def test_probes_stay_open(self, outside: str, route: str):
        assert httpx.get(outside + route, trust_env=False).status_code == 200

    @pytest.mark.parametrize("name", ["", "anybody"])
    def test_a_browser_gives_the_token_as_password(self, outside: str, name: str):
        assert httpx.get(f"{outside}/", auth=(name, TOKEN), trust_env=False).status_code == 200
        for token in (TOKEN, OTHER_TOKEN):
            headers = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{outside}/", headers=headers, trust_env=False).status_code == 200

    @pytest.mark.parametrize(
        "header",
        [
            "", "Bearer", "Bearer correct-horse", f"Bearer {TOKEN}x", f"Digest {TOKEN}", TOKEN, "Basic ???",
            "Basic " + base64.b64encode(TOKEN.encode()).decode(),
            "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode(),
            "Basic " + base64.b64encode(b"x:\xff\xfe").decode(),
        ],
    )  # fmt: skip
    def test_what_is_not_the_token_is_refused(self, outside: str, header: str):
        answer = httpx.get(f"{outside}/", headers={"Authorization": header}, trust_env=False)
        assert answer.status_code == 401

    @pytest.mark.parametrize("host", [EVERYWHERE, "", "10.0.0.1", "example.org"])
    def test_off_loopback_without_a_token_it_does_not_start(
        self, status: RunStatus, monkeypatch: pytest.MonkeyPatch, host: str
    ):
        monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
        with pytest.raises(UsageError, match="GRPO_API_TOKEN is not set") as caught:
            serve_status(status, ServerConfig(host=host, port=0)).__enter__()
        assert "127.0.0.1" in (caught.value.hint or "")

    @pytest.mark.parametrize("host", [EVERYWHERE, "127.0.0.1"])
    def test_an_empty_token_is_no_token(self, status: RunStatus, monkeypatch: pytest.MonkeyPatch, host: str):
        monkeypatch.setenv("GRPO_API_TOKEN", "  ")
        with pytest.raises(UsageError, match="GRPO_API_TOKEN is empty"):
            serve_status(status, ServerConfig(host=host, port=0)).__enter__()

    def test_on_loopback_another_name_that_points_here_does_not_open_it(self, running: StatusServer):
        """A web page may let its own name point at 127.0.0.1 and then read what is served there."""
        for name in ("evil.example", "evil.example:8002", "127.0.0.1.evil.example", ""):
            for route in ("/", "/info", "/metrics"):
                assert httpx.get(f"{running.url}{route}", headers={"Host": name}, trust_env=False).status_code == 403
        for name in ("localhost", "LOCALHOST:8002", "127.0.0.1:1", "[::1]:8002", "127.8.8.8"):
            assert httpx.get(f"{running.url}/", headers={"Host": name}, trust_env=False).status_code == 200

    def test_a_name_is_read_without_its_port(self):
        assert [host_name(host) for host in ("a:1", "[::1]:2", "b", None)] == ["a", "::1", "b", ""]

    def test_a_wrong_character_in_the_header_is_no_error(self):
        guard = LiveGuard(EVERYWHERE, [TOKEN])
        refused = guard.refusal(host="x", headers=[(b"authorization", b"Bearer \xff\xfe")])
        assert refused is not None
        assert refused.status == 401
