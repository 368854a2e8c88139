"""What strangers can write into the log."""

import asyncio
import errno
import logging
import socket

import pytest
from tests.reward.real_server import Server

from grpo_reward.background_log import NO_FILES, OddRequests


@pytest.mark.processes
def test_a_stranger_who_speaks_no_http_gets_one_line_and_not_one_for_each_request():
    server = Server("--grace-s", "0.3", built_in=False)
    try:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), 10.0) as connection:
                connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
    finally:
        server.stop()
    assert server.output[1].count("Invalid HTTP request received.") == 1


@pytest.mark.processes
def test_a_stranger_who_asks_for_another_protocol_gets_no_advice_into_it():
    server = Server("--grace-s", "0.3", built_in=False)
    try:
        host, port = server.url.removeprefix("http://").split(":")
        for method in ("GET /v1/rewards", "CONNECT /livez"):
            head = f"{method} HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
            key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            with socket.create_connection((host, int(port)), 10.0) as connection:
                connection.settimeout(10.0)
                connection.sendall((head + key).encode())
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass
    finally:
        server.stop()
    assert "pip install" not in server.output[1]


def test_without_files_for_connections_there_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As asyncio says it, whose loop is not everywhere uvloop's."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [OddRequests()])
    error = OSError(errno.EMFILE, "Too many open files")
    with asyncio.Runner() as runner:
        for _ in range(5):
            runner.get_loop().default_exception_handler({"message": NO_FILES, "exception": error, "socket": "fd=3"})
    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [
        ("socket.accept() out of system resource: Too many open files", None)
    ]
