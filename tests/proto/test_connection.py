"""Connections that somebody holds open by being slow, against a real server with short limits."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partialmethod

import httpx
import pytest
import uvicorn

from grpo_proto import ErrorBody
from grpo_proto.server import connection
from grpo_proto.server.connection import FREE_CHUNKS, LARGE_READ_BYTES, LEAST_CHUNK_BYTES, MAX_FIELDS, BoundedConnection
from grpo_proto.server.listening import listening_socket

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
LEFT = threading.Event()
"""/long saw that its client had gone."""
Address = tuple[str, int]


async def app(scope, receive, send):
    """Reads the body but on /hasty, which answers before; on /large the answer is larger than the network's buffers."""
    more = scope["path"] != "/hasty"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    if scope["path"] == "/long":
        message = await receive()  # nothing more can come but the end
        LEFT.set()
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/busy":
        time.sleep(1.0)  # noqa: ASYNC251 - nothing else happens in the server meanwhile
    body = b"x" * (32 << 20 if scope["path"] == "/large" else 2)
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(**limits: object) -> Iterator[Address]:
    connection = type("Connection", (BoundedConnection,), limits)
    config = uvicorn.Config(
        app, http=connection, ws="none", log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with listening_socket("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
        thread.start()
        try:
            yield sock.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


def is_served(address: Address) -> bool:
    return httpx.get(f"http://{address[0]}:{address[1]}/", trust_env=False, timeout=PATIENCE_S).status_code == 200


def said_until_closed(connection: socket.socket, *, drip: bytes = b"") -> bytes:
    """What came until the other end closed, while `drip` is sent five times a second."""
    connection.settimeout(0.2)
    said, deadline = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if drip:
                connection.sendall(drip)
            part = connection.recv(1 << 16)
            if not part:
                return said
            said += part
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            return said
    raise AssertionError(f"still open after {PATIENCE_S:g} s")


@pytest.mark.parametrize("begin", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
def test_headers_that_do_not_end_are_cut(begin: bytes):
    with serving(header_limit_s=1.0) as address, socket.create_connection(address) as slow:
        slow.sendall(begin)
        assert said_until_closed(slow, drip=b"a" if begin.endswith(b" ") else b"") == b""
        assert is_served(address)


def test_the_second_request_of_a_connection_has_the_same_limit():
    with serving(header_limit_s=1.0) as address, socket.create_connection(address) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert b"200" not in said_until_closed(slow, drip=b"a")


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["first", "after another"])
@pytest.mark.parametrize("drip", [b"X-a: b\r\n" * 100, b"b" * 800], ids=["many", "long"])
def test_headers_without_end_are_refused_by_their_size(before: bytes, drip: bytes):
    with serving(max_header_bytes=1000) as address, socket.create_connection(address, PATIENCE_S) as endless:
        if before:
            endless.sendall(before)
            assert endless.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        endless.sendall(b"GET / HTTP/1.1\r\nX-b: ")
        head, _, body = said_until_closed(endless, drip=drip).rpartition(b"\r\n\r\n")
        assert b"HTTP/1.1 431 " in head
        assert ErrorBody.model_validate_json(body).error.type == "headers_too_large"
        assert is_served(address)


@pytest.mark.parametrize("headers", [{"X-a": "b" * 100_000}, {f"X-{number}": "b" for number in range(MAX_FIELDS)}])
def test_a_client_sees_that_its_headers_are_too_large(headers: dict[str, str]):
    with serving() as address:
        answer = httpx.get(f"http://{address[0]}:{address[1]}/", headers=headers, trust_env=False, timeout=PATIENCE_S)
    assert answer.status_code == 431
    assert ErrorBody.model_validate_json(answer.content).error.message.endswith("65536 bytes and 200 fields")


def test_headers_behind_a_request_under_way_are_cut_without_a_word():
    """An answer would be taken for that of the request before."""
    with serving(max_header_bytes=1000) as address, socket.create_connection(address) as client:
        client.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nX-a: " + b"b" * 2000 + b"\r\n\r\n")
        assert said_until_closed(client) == b""


@pytest.mark.parametrize("head", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_drips_is_told_and_cut(head: bytes):
    with serving(body_limit_s=1.0) as address, socket.create_connection(address) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        drip = b"1\r\nx\r\n" if b"chunked" in head else b"x"
        said = said_until_closed(slow, drip=drip)
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        error = ErrorBody.model_validate_json(body).error
        assert (error.type, error.retryable) == ("slow_body", True)
        assert is_served(address)


def test_a_body_that_drips_on_after_the_answer_is_cut_too():
    with serving(body_limit_s=1.0) as address, socket.create_connection(address) as slow:
        slow.sendall(b"POST /hasty HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert said_until_closed(slow, drip=b"x").startswith(b"HTTP/1.1 200 ")


def test_a_body_in_time_and_its_slow_answer_are_not_cut():
    with serving(body_limit_s=1.0, header_limit_s=1.0) as address, socket.create_connection(address) as reader:
        reader.sendall(b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nxx")
        received = 0
        time.sleep(1.5)
        while part := reader.recv(1 << 20):
            received += len(part)
        assert received > 32 << 20


def test_an_answer_that_nobody_reads_is_not_kept(caplog):
    caplog.set_level("INFO", connection.log.name)
    with serving(unread_limit_s=1.0) as address, socket.create_connection(address, PATIENCE_S) as idle:
        idle.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        received, deadline = 0, time.monotonic() + PATIENCE_S
        while "a client does not read its answer" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ConnectionResetError):
            while part := idle.recv(1 << 20):
                received += len(part)
        assert received < 32 << 20


def test_idle_connections_make_room_the_oldest_first():
    with serving(max_idle=8, header_limit_s=PATIENCE_S) as address, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
        for each in idle:
            each.sendall(b"GET / HTTP/1.1\r\nX: ")
        more = [stack.enter_context(socket.create_connection(address)) for _ in range(3)]
        for each in idle[:3]:
            assert said_until_closed(each) == b""
        for each in (*idle[3:], *more):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        assert is_served(address)


def test_requests_that_come_while_the_server_is_busy_are_answered():
    """None of them has been read when the server looks again, so that all their connections seem to be idle."""
    request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with serving() as address, ExitStack() as stack:
        busy = stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
        busy.sendall(request.replace(b"/ ", b"/busy "))
        time.sleep(0.2)
        clients = [stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S)) for _ in range(1000)]
        for client in clients:
            client.sendall(request)
        assert {client.recv(15) for client in clients} == {b"HTTP/1.1 200 OK"}


def test_idle_connections_leave_half_of_the_files_to_others(monkeypatch):
    monkeypatch.setattr(connection, "most_files", lambda: 16)
    with serving(header_limit_s=PATIENCE_S) as address, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
        assert is_served(address)
        assert said_until_closed(idle[0]) == b""
        idle[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            idle[1].recv(1)


def test_a_request_under_way_is_not_idle():
    with serving(max_idle=2, header_limit_s=PATIENCE_S) as address, ExitStack() as stack:
        working = stack.enter_context(socket.create_connection(address))
        working.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx")
        assert is_served(address)  # by now the server has seen the request before
        for _ in range(20):
            stack.enter_context(socket.create_connection(address))
        assert is_served(address)
        working.sendall(b"x")
        working.settimeout(PATIENCE_S)
        assert working.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_an_offer_to_upgrade_keeps_its_body():
    """As `curl --http2` makes it."""
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\n"
    with serving(body_limit_s=2.0) as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        for _ in range(2):
            client.sendall(head + b"he")
            client.sendall(b"llo")
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                part = client.recv(1 << 16)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_is_refused_as_everything_else():
    with serving() as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(b"rubbish\r\n\r\n")
        head, _, body = said_until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert ErrorBody.model_validate_json(body).error.type == "malformed_http"


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("endless", [b"a:b\r\n" * 2000, b"n" * 10_000, b"v:" + b"v" * 10_000])
def test_trailers_without_end_are_cut(endless: bytes):
    with serving(max_header_bytes=10_000) as address, socket.create_connection(address) as client:
        client.sendall(CHUNKED + b"0\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            for _ in range(1000):
                client.sendall(endless)
                time.sleep(0.002)
        assert is_served(address)


def test_trailers_are_nobodys_headers_and_many_small_chunks_are_a_body():
    with serving(max_header_bytes=1000) as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(CHUNKED + b"1\r\na\r\n" * FREE_CHUNKS + b"0\r\nX-Late: yes\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_body_of_one_byte_chunks_is_refused():
    """A connection that sends 10 MB of them a second would keep the server from everything else."""
    with serving() as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(CHUNKED + b"1\r\na\r\n" * 2 * FREE_CHUNKS)
        head, _, body = said_until_closed(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert ErrorBody.model_validate_json(body).error.type == "tiny_chunks"
    chunk = b"%x\r\n%b\r\n" % (LEAST_CHUNK_BYTES, b"x" * LEAST_CHUNK_BYTES)
    with serving() as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(CHUNKED + chunk * 20_000 + b"0\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_who_wants_the_connection_closed_still_sees_an_early_answer():
    """Closed with most of the body unread, the client would see a reset."""
    head = b"POST /hasty HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 32000000\r\n\r\n"
    with serving() as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(head + b"x" * 32_000_000)
        assert said_until_closed(client).startswith(b"HTTP/1.1 200 ")
        assert is_served(address)


def test_a_flood_on_one_connection_leaves_others_their_turn(monkeypatch):
    """uvloop reads a connection 32 times before it looks at another; a body that is answered already has no limit."""
    uvloop = pytest.importorskip("uvloop", reason="asyncio's own loop reads once")
    reads: list[tuple[int, int]] = []
    turn = 0

    async def serve(server: uvicorn.Server, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(next_turn)

        next_turn()
        await server.serve(sockets=[sock])

    before = BoundedConnection.data_received

    def noting(self, data):
        reads.append((turn, len(data)))
        before(self, data)

    monkeypatch.setattr(BoundedConnection, "data_received", noting)
    config = uvicorn.Config(app, http=BoundedConnection, ws="none", log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with listening_socket("127.0.0.1", 0) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        thread = threading.Thread(target=lambda: runner.run(serve(server, sock)))
        thread.start()
        try:
            with socket.create_connection(sock.getsockname(), timeout=PATIENCE_S) as flood:
                flood.sendall(b"POST /hasty HTTP/1.1\r\nHost: x\r\nContent-Length: 32000000\r\n\r\n")
                assert flood.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
                with socket.create_connection(sock.getsockname(), timeout=PATIENCE_S) as other:
                    other.sendall(b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n")  # meanwhile much of the flood arrives
                    flood.sendall(b"x" * 32_000_000)
                    assert other.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
    large = [turn for turn, num_bytes in reads if num_bytes >= LARGE_READ_BYTES]
    assert len(large) > 1
    assert len(set(large)) == len(large)


@pytest.mark.parametrize(
    ("many", "limit"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 10_000, MAX_FIELDS + 1),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000, 20),
    ],
    ids=["headers", "requests"],
)
def test_what_is_too_much_is_not_parsed_to_its_end(monkeypatch, many, limit):
    """What came in one piece has thousands of headers or requests, each of which takes its time."""
    calls = 0
    on_url, on_header = BoundedConnection.on_url, BoundedConnection.on_header

    def counting(*arguments, before):
        nonlocal calls
        calls += 1
        before(*arguments)

    monkeypatch.setattr(BoundedConnection, "on_url", partialmethod(counting, before=on_url))
    monkeypatch.setattr(BoundedConnection, "on_header", partialmethod(counting, before=on_header))
    with serving() as address, socket.create_connection(address) as client:
        client.sendall(many)
        said_until_closed(client)
    assert 0 < calls <= 2 * limit


@pytest.mark.parametrize("rest", [b"\r\n", b"GET"])
def test_some_bytes_after_an_answer_do_not_hold_a_connection(rest: bytes):
    with serving(header_limit_s=1.0) as address, socket.create_connection(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        client.settimeout(PATIENCE_S)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(rest)
        said_until_closed(client)


def test_only_so_many_requests_wait_for_the_one_before():
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(max_pipelined=4) as address:
        with socket.create_connection(address) as greedy:
            greedy.sendall(request * 50)
            assert said_until_closed(greedy).count(b"HTTP/1.1 200 ") <= 1
        with socket.create_connection(address) as modest:
            modest.settimeout(PATIENCE_S)
            modest.sendall(request.replace(b"/large", b"/") * 3)
            said = b""
            while said.count(b"HTTP/1.1 200 ") < 3:
                part = modest.recv(1 << 16)
                assert part, said
                said += part


@pytest.mark.parametrize(
    "behind", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["alone", "another request behind it"]
)
@pytest.mark.parametrize("reset", [False, True])
def test_a_request_ends_when_its_client_has_gone(behind: bytes, reset: bool):
    """With a request behind it nothing is read, and work of minutes went on for somebody who had left."""
    LEFT.clear()
    with serving() as address:
        with socket.create_connection(address) as client:
            client.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n" + behind)
            time.sleep(0.2)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert LEFT.wait(PATIENCE_S)
        assert is_served(address)


def test_a_large_request_with_the_beginning_of_the_next_is_answered():
    body = b"x" * 100_000
    first = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with serving() as address, socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(first + b"GET / HTTP")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
