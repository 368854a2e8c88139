"""What strangers can write into the log."""

import asyncio
import errno
import logging
import socket

import pytest
from tests.reward.real_server import Server

from grpo_reward import background_log
from grpo_reward.background_log import NO_FILES, FewerRepeats


def test_a_stranger_who_speaks_no_http_gets_one_line_and_not_one_for_each_request():
    server = Server("--grace-s", "0.3")
    try:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), 10.0) as connection:
                connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
    finally:
        server.stop()
    assert server.output[1].count("Invalid HTTP request received.") == 1


def test_a_stranger_who_asks_for_another_protocol_gets_no_advice_into_it():
    server = Server("--grace-s", "0.3")
    try:
        host, port = server.url.removeprefix("http://").split(":")
        for method in ("GET /v1/rewards", "CONNECT /livez"):
            head = f"{method} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
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
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [FewerRepeats()])
    error = OSError(errno.EMFILE, "Too many open files")
    with asyncio.Runner() as runner:
        for _ in range(5):
            runner.get_loop().default_exception_handler({"message": NO_FILES, "exception": error, "socket": "fd=3"})
    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [
        ("socket.accept() out of system resource: Too many open files", None)
    ]


def test_the_next_line_says_how_many_there_were(monkeypatch: pytest.MonkeyPatch):
    now_s = 100.0
    monkeypatch.setattr(background_log.time, "monotonic", lambda: now_s)
    fewer = FewerRepeats()

    def passed(text: str, level: int = logging.WARNING) -> str | None:
        record = logging.makeLogRecord({"msg": text, "levelno": level})
        return record.getMessage() if fewer.filter(record) else None

    assert [passed("odd") for _ in range(4)] == ["odd", None, None, None]
    assert passed("another") == "another"
    assert [passed("grave", logging.ERROR) for _ in range(2)] == ["grave", "grave"]
    now_s += 10.0
    assert [passed("odd"), passed("odd"), passed("another")] == [
        "odd (3 more since the last such line)",
        None,
        "another",
    ]
