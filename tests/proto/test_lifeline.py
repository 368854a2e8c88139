"""The lifeline beside a process group: who may join, and who is freed when a member dies or stands still."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import torch

from grpo_proto.lifeline import Crew, Host, Member, host
from grpo_proto.lifeline.handshake import StrangerError, introduce
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import WeightGroup
from tests.waiting import PATIENCE_S

SILENCE_S = 2.0
OPERATION_S = 60.0
MEMBER = """
import sys, torch
from grpo_proto.lifeline import Member
from grpo_proto.transport import WeightGroup
port, secret = sys.argv[1:]
member = Member("127.0.0.1", int(port), session=1, rank=1, secret=secret, timeout_s=60.0, silence_s=2.0)
group = WeightGroup(member, rank=1, world_size=3, backend="gloo", timeout_s=60.0)
print("joined", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def open_host() -> Iterator[Host]:
    opened = Host(listening_socket("127.0.0.1", 0), silence_s=SILENCE_S)
    yield opened
    opened.close()


def join(opened: Host, crew: Crew, rank: int, secret: str | None = None) -> Member:
    secret = crew.secret if secret is None else secret
    return Member(
        "127.0.0.1", opened.port, session=crew.session, rank=rank, secret=secret, timeout_s=5.0, silence_s=SILENCE_S
    )


def eventually(holds: object, timeout_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < until_s
        time.sleep(0.02)


class TestWhoMayJoin:
    def test_a_member_without_the_secret_is_refused(self, open_host: Host):
        crew = open_host.crew(1, 2)
        with pytest.raises(StrangerError):
            join(open_host, crew, 1, secret="guessed")
        assert crew.arrived == set()

    def test_a_session_that_is_closed_admits_nobody(self, open_host: Host):
        crew = open_host.crew(1, 2)
        crew.close()
        with pytest.raises(StrangerError):
            join(open_host, crew, 1)

    def test_a_host_that_does_not_know_the_secret_is_left(self):
        """Whoever listens there in the trainer's place learns nothing that opens the session elsewhere."""
        ours, theirs = socket.socketpair()
        theirs.sendall(bytes(16 + 32))  # a nonce, and an answer that proves nothing
        with ours, theirs, pytest.raises(StrangerError, match="does not know the secret"):
            introduce(ours, "secret", session=1, rank=1, timeout_s=5.0)

    def test_a_rank_is_taken_once(self, open_host: Host):
        crew = open_host.crew(1, 2)
        first = join(open_host, crew, 1)
        first.set("here", b"")
        crew.get("here", 5.0)  # the host has taken it: two that come at once are taken in any order
        second = join(open_host, crew, 1)
        eventually(lambda: second.ended is not None)
        assert first.ended is None
        assert crew.lost == {}

    def test_who_proves_nothing_is_cut_off(self, open_host: Host, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(host, "PROOF_TIMEOUT_S", 0.2)
        with socket.create_connection(("127.0.0.1", open_host.port), timeout=5.0) as stranger:
            assert len(stranger.recv(100)) == 16
            assert stranger.recv(100) == b""

    def test_who_proves_it_byte_by_byte_is_cut_off_as_soon(self, open_host: Host, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(host, "PROOF_TIMEOUT_S", 0.4)
        with socket.create_connection(("127.0.0.1", open_host.port), timeout=5.0) as stranger:
            assert len(stranger.recv(100)) == 16
            stranger.settimeout(0.1)
            left = 59  # of the 60 that it would take
            with suppress(ConnectionError):
                while left:
                    stranger.sendall(b"x")
                    left -= 1
                    with suppress(TimeoutError):
                        assert stranger.recv(100) == b""
                        break
        assert left

    def test_rubbish_ends_a_connection_and_nothing_else(self, open_host: Host):
        crew = open_host.crew(1, 3)
        with socket.create_connection(("127.0.0.1", open_host.port), timeout=5.0) as stranger:
            stranger.sendall(os.urandom(60))
            assert len(stranger.recv(100)) == 16
            assert stranger.recv(100) == b""
        member = join(open_host, crew, 1)
        member.set("key", b"value")
        assert crew.get("key", 5.0) == b"value"


class TestKeys:
    def test_every_member_sees_what_any_member_sets(self, open_host: Host):
        crew = open_host.crew(1, 3)
        one, two = join(open_host, crew, 1), join(open_host, crew, 2)
        with ThreadPoolExecutor(3) as pool:
            early = [pool.submit(member.get, "k", 5.0) for member in (crew, two)]
            one.set("k", b"\0value")
            assert {found.result() for found in early} == {b"\0value"}
        crew.set("of the trainer", b"")
        assert one.get("of the trainer", 5.0) == b""

    def test_a_key_that_nobody_sets_is_not_waited_for_beyond_the_end(self, open_host: Host):
        crew = open_host.crew(1, 2)
        member = join(open_host, crew, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(member.get, "k", OPERATION_S)
            crew.close()
            with pytest.raises(RuntimeError, match="the trainer closed the connection"):
                waiting.result(OPERATION_S / 2)

    def test_a_connection_that_is_closed_before_all_was_read_was_closed(self, open_host: Host):
        """The kernel answers such an end with a reset."""
        crew = open_host.crew(1, 2)
        worker = socket.create_connection(("127.0.0.1", open_host.port), timeout=5.0)
        introduce(worker, crew.secret, session=1, rank=1, timeout_s=5.0)
        eventually(lambda: crew.arrived == {1})
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        worker.close()
        eventually(lambda: crew.ended is not None)
        assert crew.lost == {1: "closed the connection"}


@contextmanager
def a_group_of_three(opened: Host) -> Iterator[tuple["subprocess.Popen[str]", Crew, WeightGroup, WeightGroup]]:
    """Rank 0 and 2 here, rank 1 in a process of its own, which then does nothing."""
    crew = opened.crew(1, 3)
    command = [sys.executable, "-c", MEMBER, str(opened.port), crew.secret]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            options = {"world_size": 3, "backend": "gloo", "timeout_s": PATIENCE_S}
            with ThreadPoolExecutor(2) as pool:
                ours = pool.submit(WeightGroup, crew, rank=0, **options)
                theirs = pool.submit(lambda: WeightGroup(join(opened, crew, 2), rank=2, **options))
                groups = ours.result(), theirs.result()
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            yield other, crew, *groups
        finally:
            other.kill()


def started(act: object, *arguments: object) -> "Future[None]":
    """Run it in a thread that does not keep the tests from ending."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            future.set_result(act(*arguments))  # type: ignore[operator]
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.mark.processes
@pytest.mark.parametrize(
    ("sign", "how"), [(signal.SIGSTOP, "was silent for 2 s"), (signal.SIGKILL, "closed the connection")]
)
def test_everybody_is_freed_when_a_member_stands_still_or_dies(open_host: Host, sign: signal.Signals, how: str):
    """Long before the limit of the operation in which the others wait for it."""
    with a_group_of_three(open_host) as (other, crew, ours, theirs):
        crew.watch(on=True)
        other.send_signal(sign)
        started_s = time.monotonic()
        bucket = torch.zeros(2**26, dtype=torch.uint8)  # more than any buffer of the kernel holds
        waiting = [
            started(lambda group=group: group.broadcast(bucket.clone(), timeout_s=OPERATION_S))
            for group in (ours, theirs)
        ]
        assert isinstance(waiting[0].exception(OPERATION_S / 2), RuntimeError)
        waiting[1].exception(OPERATION_S / 2)  # it may have got all it waited for before
        with pytest.raises(RuntimeError):
            theirs.broadcast(bucket, timeout_s=OPERATION_S)
        assert time.monotonic() - started_s < OPERATION_S / 2
        assert crew.lost == {1: how}


@pytest.mark.processes
def test_who_stands_still_outside_a_push_is_not_lost(open_host: Host):
    """An update may take minutes, and a debugger may hold a process."""
    with a_group_of_three(open_host) as (other, crew, *_):
        other.send_signal(signal.SIGSTOP)
        time.sleep(SILENCE_S * 1.5)
        other.send_signal(signal.SIGCONT)
        crew.watch(on=True)
        time.sleep(SILENCE_S * 1.5)
        assert crew.lost == {}
        assert 0.5 < crew.longest_gap_s < 1.5


def test_a_worker_that_cannot_go_on_says_so_itself(open_host: Host):
    crew = open_host.crew(1, 3)
    one, two = join(open_host, crew, 1), join(open_host, crew, 2)
    eventually(lambda: crew.arrived == {1, 2})
    two.fail("ran out of memory")
    eventually(lambda: one.ended is not None)
    assert crew.lost == {2: "ran out of memory"}
    assert one.ended == "another worker of the session, rank 2, ran out of memory"
    one.close()
    assert crew.lost.keys() == {2}, "who leaves afterwards is not lost"


def test_a_worker_that_leaves_ends_the_session_and_is_not_at_fault(open_host: Host):
    """It gave up waiting for another one."""
    crew = open_host.crew(1, 3)
    one, two = join(open_host, crew, 1), join(open_host, crew, 2)
    eventually(lambda: crew.arrived == {1, 2})
    two.close()
    eventually(lambda: one.ended is not None)
    eventually(lambda: crew.ended is not None)  # only once it has freed the others
    assert crew.ended == "worker 2 left"
    assert crew.lost == {}
