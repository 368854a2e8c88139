"""What a client may write on a connection, and what it gets when the server is told to end."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.reward.real_server import LATE, PATIENCE_S, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

BODY = json.dumps({"rewards": [{"name": "misbehave"}], "samples": [{"completion": "x"}]}).encode()
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
"""As `curl --http2` sends them."""


def request(headers: bytes, body: bytes = BODY) -> bytes:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


@pytest.fixture(scope="module")
def server(misbehaving: Path) -> Iterator[Server]:
    server = Server("--plugin", str(misbehaving), built_in=False)
    yield server
    if server.process.poll() is None:
        server.stop(signal.SIGKILL)


def connected(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def all_of(connection: socket.socket) -> bytes:
    """Until the other end closes."""
    received = bytearray()
    while part := connection.recv(1 << 16):
        received += part
    return bytes(received)


def is_closed(server: Server) -> bool:
    """Whether it takes no more connections."""
    try:
        connected(server).close()
    except ConnectionRefusedError:
        return True
    return False


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""At the end of what is sent, so that the connection ends."""
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("parts", "scored"),
    [
        ([request(UPGRADE), CLOSE], 1),
        ([request(UPGRADE)[:60], request(UPGRADE)[60:-10], request(UPGRADE)[-10:], CLOSE], 1),
        ([request(UPGRADE) + request(b"") + request(UPGRADE) + CLOSE], 3),
        ([request(UPGRADE.replace(b"Connection: ", b"Connection: close, "))], 1),
        ([request(UPGRADE).replace(b"HTTP/1.1", b"HTTP/1.0")], 1),
        ([request(UPGRADE).replace(b"h2c", b"websocket"), CLOSE], 1),
        (
            [request(UPGRADE, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + CHUNKED, CLOSE],
            1,
        ),
    ],
    ids=["h2c", "in pieces", "pipelined", "closing", "HTTP/1.0", "websocket", "chunked"],
)
def test_an_offer_to_upgrade_is_passed_over(server, parts, scored):
    with connected(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)
        answer = all_of(connection)
    assert answer.count(b'"misbehave":{"score":1.0,"status":"ok"}') == scored
    assert (
        answer.count(b"HTTP/1.1 200 OK")
        == answer.count(b"HTTP/1.1")
        == scored + parts.count(CLOSE) + (len(parts) == 1 and CLOSE in parts[0])
    )


@pytest.mark.parametrize(
    "rubbish", [b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n\r\nabc", b"\x16\x03\x01\x02", b"a b c d\r\n\r\n"]
)
def test_what_is_no_http_is_refused_in_our_shape(server, rubbish):
    with connected(server) as connection:
        connection.sendall(rubbish)
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "malformed_http"


@pytest.mark.parametrize(
    ("signals", "missing_bytes"), [(2, 0), (3, 0), (2, 5)], ids=["two", "three", "body on its way"]
)
def test_a_server_told_twice_to_end_refuses_what_is_in_work(misbehaving: Path, signals, missing_bytes):
    server = Server("--plugin", str(misbehaving), "--grace-s", "600", built_in=False)
    late, body = request(b"Expect: 100-continue\r\n", b""), json.dumps(LATE).encode()
    late = late.replace(b"Content-Length: 0", b"Content-Length: %d" % len(body))
    with connected(server) as connection:
        connection.sendall(late)
        assert connection.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        connection.sendall(body[: len(body) - missing_bytes])
        if not missing_bytes:
            metrics = f"{server.url}/metrics"
            wait_until(lambda: "queue_depth 1.0" in httpx.get(metrics, trust_env=False).text, "nothing is in work")
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: is_closed(server), "it did not begin to end")
        for _ in range(signals - 1):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["type"] == "shutting_down"
    assert server.wait() == 0
    assert "Traceback" not in server.output[1]
