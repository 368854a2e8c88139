"""files/smoke_test.py and trainer_probe.py, run for real: against a reward server, and stand-ins for the other two."""

import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes import free_port, reward_command, service

from .rendering import CHART, find, objects_of, render_texts, values_of

pytestmark = pytest.mark.processes

TOKEN = "for-the-test"
ANSWERS: dict[str, Any] = {
    "/v1/rollouts": {"groups": [{"completions": [{"token_ids": [5]}, {"token_ids": [6]}]}]},
    "/v1/weights": {"state": "current", "version": 3, "reason": None},
    "/info": {"policy_version": 3},
    "/livez": {"ok": True},
}


@contextmanager
def _stand_in(answers: dict[str, Any], certificate: Path | None = None) -> Iterator[str]:
    """A server that answers JSON by path, to whoever has the token. `certificate`, with its key, makes it HTTPS."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path, {})).encode()
            allowed = self.headers["Authorization"] == f"Bearer {TOKEN}" or self.path in ("/info", "/livez")
            self.send_response(200 if allowed and self.path in answers else 403)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def reward_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, log = free_port(), tmp_path_factory.mktemp("reward") / "log"
    with service(reward_command(port), log, port=port, environment={"GRPO_API_TOKEN": TOKEN}) as running:
        running.wait_until_live()  # a first start may take longer than the smoke test waits
        yield running.url


def _run(limit_s: str = "20", **urls: str) -> subprocess.CompletedProcess[str]:
    """As the pod of `helm test` does, with its own SCORE."""
    pod = find(objects_of("small"), "Pod")["spec"]["containers"][0]
    variables = {variable["name"]: variable.get("value", "") for variable in pod["env"]}
    environment = {"GRPO_API_TOKEN": TOKEN + "\n", "LIMIT_S": limit_s, "SCORE": variables["SCORE"]}
    environment |= {"REWARD_URL": "", "ROLLOUT_URLS": "", "TRAINER_URL": "", "CA_FILE": "/none", **urls}
    command = [sys.executable, "-I", str(CHART / "files" / "smoke_test.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_it_passes_where_all_is_well(reward_server: str) -> None:
    with _stand_in(ANSWERS) as other:
        result = _run(REWARD_URL=reward_server, ROLLOUT_URLS=f"{other},{other}", TRAINER_URL=other)
    assert result.returncode == 0, result.stderr
    assert "reward: 1 scored, total 1.0" in result.stdout
    assert result.stdout.count("sampled 2") == 2
    assert "weights current, version 3" in result.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"/v1/rollouts": {"groups": [{"completions": []}]}}, "no group of two completions"),
        ({"/v1/weights": {"state": "stale", "version": 2, "reason": "digest"}}, "weights are stale: digest"),
        ({"/v1/weights": {"state": "initial", "version": 0, "reason": None}}, "version 3 and never pushed here"),
    ],
)
def test_it_says_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with _stand_in(ANSWERS | change) as other:
        result = _run("0", ROLLOUT_URLS=other, TRAINER_URL=other)
    assert result.returncode == 1
    assert said in result.stderr


def test_it_passes_after_the_training() -> None:
    """The trainer's pod has ended; the weights that it pushed are served."""
    with _stand_in(ANSWERS) as other:
        result = _run("0", ROLLOUT_URLS=other, TRAINER_URL=f"http://127.0.0.1:{free_port()}")
    assert result.returncode == 0, result.stderr
    assert "weights current, version 3" in result.stdout


def test_a_trainer_that_is_not_there_is_missed_where_nothing_was_pushed() -> None:
    initial = {"/v1/weights": {"state": "initial", "version": 0, "reason": None}}
    with _stand_in(ANSWERS | initial) as other:
        result = _run("0", ROLLOUT_URLS=other, TRAINER_URL=f"http://127.0.0.1:{free_port()}")
    assert result.returncode == 1
    assert "has the weights it loaded, and the trainer does not answer" in result.stderr


def test_servers_with_a_certificate_of_a_private_authority_are_tested(tmp_path: Path) -> None:
    certificate = tmp_path / "both.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=ours -addext subjectAltName=IP:127.0.0.1"
    files: list[str | Path] = ["-keyout", tmp_path / "key", "-out", tmp_path / "ca.crt"]
    subprocess.run([*request.split(), *files], check=True, capture_output=True)
    certificate.write_bytes((tmp_path / "key").read_bytes() + (tmp_path / "ca.crt").read_bytes())
    with _stand_in(ANSWERS, certificate) as server:
        trusted = _run("0", ROLLOUT_URLS=server, CA_FILE=str(tmp_path / "ca.crt"))
        stranger = _run("0", ROLLOUT_URLS=server)
    assert trusted.returncode == 0, trusted.stderr
    assert stranger.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in stranger.stderr


def test_an_unreachable_server_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = _run("0", REWARD_URL=url)
    assert result.returncode == 1
    assert url in result.stderr


def test_the_curl_lines_of_the_notes_work(reward_server: str) -> None:
    """The score line, with the forwarded port replaced by the server's."""
    assert _run(REWARD_URL=reward_server).returncode == 0  # it is up
    values = values_of("small")
    sample = {"id": "it's", "completion": "<answer>7</answer>", "columns": {"nums": [7], "target": 7}}
    values["tests"] = {"score": {"rewards": [{"name": "countdown"}], "samples": [sample]}}
    notes = next(text for name, text in render_texts(values).items() if name.endswith("NOTES.txt"))
    start = notes.index("  curl -s http://127.0.0.1:8001/v1/score")
    command = notes[start : notes.index("\n\n", start)].replace("http://127.0.0.1:8001", reward_server)
    result = subprocess.run(
        ["sh", "-c", command], env=os.environ | {"TOKEN": TOKEN}, capture_output=True, text=True, timeout=30, check=True
    )
    answer = json.loads(result.stdout)["results"][0]
    assert (answer["id"], answer["total"]) == ("it's", 1.0)


@pytest.mark.parametrize(("listens", "status"), [(True, 4), (False, 1)])
def test_the_probe_tells_a_trainer_that_says_nothing_from_one_that_is_not_there(listens: bool, status: int) -> None:
    source = (CHART / "files" / "trainer_probe.py").read_text().replace("timeout=5", "timeout=1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        command = [sys.executable, "-I", "-c", source.replace(":8002", f":{port}"), "/livez"]
        done = subprocess.run(command, env={"NODE_RANK": "0"}, capture_output=True, timeout=30, check=False)
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize(("rank", "answers", "status"), [("0", ANSWERS, 0), ("0", {}, 3), ("1", {}, 0)])
def test_the_probe_asks_the_first_pod_only(rank: str, answers: dict[str, Any], status: int) -> None:
    source = (CHART / "files" / "trainer_probe.py").read_text()
    with _stand_in(answers) as url:
        result = subprocess.run(
            [sys.executable, "-I", "-c", source.replace("http://127.0.0.1:8002", url), "/livez"],
            env={"NODE_RANK": rank, "http_proxy": "http://127.0.0.1:9"},  # which nothing of ours goes through
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert result.returncode == status
