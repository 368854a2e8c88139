"""Clients that never end their headers and never read their answers, against the command."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.reward.real_server import PATIENCE_S

pytestmark = pytest.mark.faults


def closed(connection: socket.socket) -> bool:
    """Whether the other end has closed, waiting a while."""
    connection.settimeout(PATIENCE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_headers_that_never_end_are_cut_by_size_and_by_time(real_server):
    host, port = real_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as endless, socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        endless.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        try:
            for _ in range(4096):
                endless.sendall(b"X-a: b\r\n" * 512)
                sent += 8 * 512
        except (ConnectionResetError, BrokenPipeError):
            pass
        else:
            assert closed(endless)
        assert sent < 16 << 20
        # A body is not a header: this is larger than any header may be.
        samples = [{"completion": "x" * 1000}] * 500
        body = {"rewards": [{"name": "format"}], "samples": samples}
        assert httpx.post(f"{real_server.url}/v1/score", json=body, trust_env=False).status_code == 200
        assert closed(silent)


ECHOED_BYTES = 10 << 20


@contextlib.contextmanager
def echoing(limit: str) -> Iterator[tuple[tuple[str, int], bytes]]:
    """A server with another limit for unread answers, and a request whose answer is as large as itself."""
    program = f"""
import sys
from grpo_proto.server.connection import BoundedConnection as limits
from grpo_reward.__main__ import main
{limit}
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--workers", "1", "--adapter-rewards", "format"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    host, port = process.stdout.readline().split()[2].removeprefix("http://").split(":")
    body = json.dumps({"responses_create_params": {}, "response": {"output": []}, "task": "x" * ECHOED_BYTES}).encode()
    head = "POST /verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    yield (host, int(port)), head.encode() + body
    process.send_signal(signal.SIGTERM)
    assert "a client does not read its answer" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0


def received_bytes(connection: socket.socket, *, pause_s: float = 0.0) -> int:
    """Of an answer as large as that of `echoing`, until it is there, or the connection has been closed."""
    connection.settimeout(PATIENCE_S)
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while received < ECHOED_BYTES and (part := connection.recv(1 << 20)):
            received += len(part)
            time.sleep(pause_s)
    return received


def test_an_answer_that_nobody_reads_is_not_kept():
    with echoing("limits.unread_limit_s = 1.0") as (address, request), socket.create_connection(address) as idle:
        idle.sendall(request)
        time.sleep(3.0)
        assert received_bytes(idle) < ECHOED_BYTES


def test_a_slow_reader_gets_all_of_its_answer_and_one_that_has_stopped_makes_room_for_others():
    with echoing("limits.max_unread_bytes, limits.unread_limit_s = 2**20, 2.0") as (address, request):
        with socket.create_connection(address) as idle, socket.create_connection(address) as slow:
            idle.sendall(request)
            time.sleep(0.5)
            slow.sendall(request)
            assert received_bytes(slow, pause_s=0.2) >= ECHOED_BYTES
            assert received_bytes(idle) < ECHOED_BYTES
