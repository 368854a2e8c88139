"""What is refused before its body was read reaches the client all the same, over real sockets."""

import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.reward.real_server import PATIENCE_S, Server

from grpo_proto import DataError, RewardClient, RewardSpec, ScoreRequest, ScoreSample

pytestmark = pytest.mark.processes

TOKEN = "secret"
LARGE = b'"' + b"x" * (20 * 2**20) + b'"'
JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = Server("--body-timeout-s", "5", built_in=False, GRPO_API_TOKEN=TOKEN)
    yield server.url
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 413), ({"Content-Type": "text/plain"}, 415), ({"Authorization": "Bearer x"}, 401)]
)
def test_a_large_body_does_not_hide_why_it_was_refused(url, headers, status):
    for _ in range(5):
        answer = httpx.post(
            f"{url}/v1/score", content=LARGE, headers=JSON | headers, trust_env=False, timeout=PATIENCE_S
        )
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


async def test_our_client_does_not_take_it_for_a_server_that_is_away(url):
    samples = [ScoreSample(completion="x" * 2**20) for _ in range(20)]
    async with RewardClient(url, token=TOKEN) as client:
        with pytest.raises(DataError, match="the limit is 16777216 bytes"):
            await client.score(ScoreRequest(rewards=[RewardSpec(name="format")], samples=samples), retry_for_s=60)


def drip(connection: socket.socket) -> None:
    """Raises ConnectionError when the other side has closed."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        connection.sendall(b"400\r\n" + b"x" * 0x400 + b"\r\n")
        time.sleep(0.05)


@pytest.mark.faults
def test_a_body_that_goes_on_without_end_after_its_refusal_is_cut(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
            b"Authorization: Bearer secret\r\n\r\n"
        )
        with pytest.raises(ConnectionError):
            drip(connection)
