"""Buckets, digest, and real Gloo groups whose members are threads."""

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from grpo_proto.lifeline import Crew, Host, Lifeline, Member
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import (
    ALIGNMENT_BYTES,
    Digest,
    WeightGroup,
    address_towards,
    nccl_errors_are_raised,
    plan_manifest,
    view_tensor,
)


def random_bytes(num_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


def digest_of(*buckets: torch.Tensor) -> str:
    digest = Digest(max(bucket.numel() for bucket in buckets), "cpu")
    for bucket in buckets:
        digest.add(bucket)
    return digest.hexdigest()


TRIPLES = [("a", "bfloat16", (3, 5)), ("b", "float32", ()), ("c", "bfloat16", (100,)), ("d", "bool", (7,))]


class TestPlan:
    def test_tensors_lie_in_order_aligned_and_apart(self):
        manifest = plan_manifest(TRIPLES, bucket_bytes=64)
        assert [tensor.name for tensor in manifest.tensors] == list("abcd")
        assert manifest.bucket_bytes == [48, 208, 16]
        assert [(tensor.bucket, tensor.offset) for tensor in manifest.tensors] == [(0, 0), (0, 32), (1, 0), (2, 0)]
        assert all(size % ALIGNMENT_BYTES == 0 for size in manifest.bucket_bytes)

    def test_one_bucket_when_all_fit(self):
        assert len(plan_manifest(TRIPLES).bucket_bytes) == 1

    def test_views_give_back_what_was_put_in(self):
        manifest = plan_manifest(TRIPLES)
        buffer = torch.zeros(manifest.bucket_bytes[0], dtype=torch.uint8)
        values = [torch.randn(3, 5).bfloat16(), torch.tensor(3.25), torch.randn(100).bfloat16(), torch.ones(7).bool()]
        for spec, value in zip(manifest.tensors, values, strict=True):
            view_tensor(buffer, spec).copy_(value)
        for spec, value in zip(manifest.tensors, values, strict=True):
            view = view_tensor(buffer, spec)
            assert (view.dtype, view.shape) == (value.dtype, value.shape)
            assert torch.equal(view, value)


class TestDigest:
    @pytest.mark.parametrize("num_bytes", [16, 8176, 8192, 8208, 3 * 2**20, 3 * 2**20 + 32])
    def test_it_is_the_sums_it_says(self, num_bytes: int):
        bucket = random_bytes(num_bytes)
        words = bucket.view(torch.int64)
        weights = torch.arange(1, 2 * words.numel() + 1, 2)
        digest = Digest(2**22, "cpu")
        digest.add(bucket)
        sums = [(int(words.sum()), int((words * weights).sum()))]
        assert digest.hexdigest() == hashlib.sha256(repr(sums).encode()).hexdigest()

    def test_the_block_size_changes_nothing(self, monkeypatch: pytest.MonkeyPatch):
        bucket = random_bytes(2**20 + 48)
        whole = digest_of(bucket)
        monkeypatch.setattr(Digest, "CPU_BLOCK_ROWS", 3)
        assert digest_of(bucket) == whole

    def test_every_bit_counts(self):
        bucket = random_bytes(20_000)
        before = digest_of(bucket)
        for position in range(0, 20_000, 777):
            for bit in (1, 128):
                bucket[position] ^= bit
                assert digest_of(bucket) != before
                bucket[position] ^= bit
        assert digest_of(bucket) == before

    def test_order_number_and_place_count(self):
        a, b = random_bytes(8192, 1), random_bytes(8192, 2)
        swapped = a.clone().view(torch.int64)
        swapped[[3, 700]] = swapped[[700, 3]]
        digests = {digest_of(a, b), digest_of(b, a), digest_of(a), digest_of(a, a), digest_of(torch.cat([a, b]))}
        assert len(digests | {digest_of(swapped.view(torch.uint8))}) == 6


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host(listening_socket("127.0.0.1", 0), silence_s=5.0)
    yield host
    host.close()


def member(crew: Crew, host: Host, rank: int, world_size: int, *, timeout_s: float = 20.0, **how: str) -> WeightGroup:
    """One member, with a connection of its own as another process would have."""
    lifeline: Lifeline = crew
    if rank > 0:
        address = how.get("address", "127.0.0.1")
        lifeline = Member(
            "::1" if ":" in address else "127.0.0.1", host.port,
            session=crew.session, rank=rank, secret=crew.secret, timeout_s=timeout_s, silence_s=5.0,
        )  # fmt: skip
    return WeightGroup(lifeline, rank=rank, world_size=world_size, backend="gloo", timeout_s=timeout_s, **how)


def form(host: Host, world_size: int, *, session: int = 1) -> list[WeightGroup]:
    crew = host.crew(session, world_size)
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: member(crew, host, rank, world_size), range(world_size)))


class TestGroup:
    def test_everybody_gets_what_rank_0_sends(self, host: Host):
        groups = form(host, 3)
        buckets = [random_bytes(100_000), torch.zeros(100_000).byte(), torch.zeros(100_000).byte()]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda group, bucket: group.broadcast(bucket, timeout_s=10), groups, buckets))
        assert torch.equal(buckets[1], buckets[0])
        assert torch.equal(buckets[2], buckets[0])
        for group in groups:
            group.close()

    def test_the_data_travels_on_the_addresses_given(self, host: Host):
        def listeners() -> set[str]:
            """Loopback addresses that this machine listens on, from the kernel."""
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            return {socket.inet_ntoa(bytes.fromhex(row[1][:8])[::-1]) for row in rows if row[3] == "0A"}

        addresses = ["127.0.0.77", "127.0.0.78"]
        assert not listeners() & set(addresses)
        crew = host.crew(1, 2)
        with ThreadPoolExecutor(2) as pool:
            groups = list(pool.map(lambda rank: member(crew, host, rank, 2, address=addresses[rank]), range(2)))
        assert listeners() >= set(addresses)
        for group in groups:
            group.close()

    def test_the_address_towards_a_host_is_this_machines_own(self):
        assert address_towards("127.0.0.1", 29500) == "127.0.0.1"
        assert address_towards("::1", 29500) == "::1"

    def test_a_group_may_meet_by_ipv6(self):
        """The trainer's address and ours, as in a cluster without IPv4."""
        host = Host(listening_socket("::1", 0), silence_s=5.0)
        crew, address = host.crew(1, 2), address_towards("::1", host.port)
        with ThreadPoolExecutor(2) as pool:
            sender, receiver = pool.map(lambda rank: member(crew, host, rank, 2, address=address), range(2))
        sent, received = random_bytes(100_000), torch.zeros(100_000).byte()
        arriving = receiver.start_broadcast(received, timeout_s=10)
        sender.broadcast(sent, timeout_s=10)
        arriving.wait()
        assert torch.equal(sent, received)
        for group in (sender, receiver):
            group.close()
        host.close()

    def test_two_transfers_may_be_under_way(self, host: Host):
        sender, receiver = form(host, 2)
        sent = [random_bytes(50_000, seed) for seed in range(4)]
        received = [torch.zeros(50_000).byte() for _ in sent]
        arriving = [receiver.start_broadcast(bucket, timeout_s=10) for bucket in received]
        leaving = [sender.start_broadcast(bucket, timeout_s=10) for bucket in sent]
        for transfer in (*leaving, *arriving):
            transfer.wait()
        assert all(map(torch.equal, sent, received))

    def test_a_peer_that_hangs_costs_one_time_out(self, host: Host):
        _, receiver = form(host, 2)
        started_s = time.monotonic()
        with pytest.raises(RuntimeError, match=r"[Tt]imed? ?out"):
            receiver.broadcast(torch.zeros(16).byte(), timeout_s=1.0)
        assert 0.9 < time.monotonic() - started_s < 20.0, "the time-out of the group, not of the transfer"

    def test_a_peer_that_leaves_is_noticed_at_once(self, host: Host):
        sender, receiver = form(host, 2)
        errors: list[Exception] = []

        def receive() -> None:
            try:
                receiver.broadcast(torch.zeros(16).byte(), timeout_s=30.0)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=receive)
        thread.start()
        time.sleep(0.2)
        sender.close()
        thread.join(10.0)
        assert not thread.is_alive()
        assert errors

    def test_after_a_time_out_a_new_group_works_in_the_same_processes(self, host: Host):
        sender, receiver = form(host, 2, session=1)
        with pytest.raises(RuntimeError):
            receiver.broadcast(torch.zeros(16).byte(), timeout_s=0.5)
        sender.close()
        receiver.close()
        new_sender, new_receiver = form(host, 2, session=2)
        bucket = torch.zeros(16).byte()
        arriving = new_receiver.start_broadcast(bucket, timeout_s=10)
        new_sender.broadcast(random_bytes(16), timeout_s=10)
        arriving.wait()
        assert torch.equal(bucket, random_bytes(16))

    def test_forming_ends_by_its_time_out_when_a_member_is_missing(self, host: Host):
        with pytest.raises(RuntimeError):
            member(host.crew(1, 2), host, 0, 2, timeout_s=1.0)

    def test_a_closed_group_says_so(self, host: Host):
        group, _ = form(host, 2)
        group.close()
        group.close()
        with pytest.raises(RuntimeError, match="closed"):
            group.broadcast(torch.zeros(16).byte(), timeout_s=1.0)


def test_groups_that_are_made_at_once_leave_no_setting_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    both_began = threading.Barrier(2)

    def make(longer_s: float) -> None:
        both_began.wait(10.0)
        with nccl_errors_are_raised():
            assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
            time.sleep(longer_s)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, (0.1, 0.2)))
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ


class TestNccl:
    """There is no GPU here: PyTorch's class is replaced by one that notes how it is made and used."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
        made: list[dict[str, object]] = []

        class Work:
            def wait(self, timeout: timedelta) -> bool:
                if made[-1].get("peer_is_gone"):
                    raise RuntimeError("NCCL communicator was aborted")
                return True

        class Group:
            def __init__(self, *_: object) -> None:
                made.append({"blocking": os.environ.get("TORCH_NCCL_BLOCKING_WAIT"), "broadcasts": 0, "aborted": False})

            def broadcast(self, tensors: list[torch.Tensor], options: object) -> Work:
                made[-1]["broadcasts"] += 1
                return Work()

            def abort(self) -> None:
                made[-1]["aborted"] = True

        monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *size, device, **how: zeros(*size, **how))
        return made

    def join(self) -> WeightGroup:
        return WeightGroup(Lifeline(), rank=0, world_size=1, backend="nccl", timeout_s=5.0)

    @pytest.mark.parametrize("before", [None, "0"])
    def test_errors_come_to_whoever_waits_and_other_groups_are_made_as_before(
        self, before: str | None, made: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
    ):
        """By default PyTorch ends the process of a member whose peer has died."""
        if before is None:
            monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
        else:
            monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", before)
        self.join()
        assert made[-1]["blocking"] == "1"
        assert os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == before

    def test_members_have_met_when_it_is_made(self, made: list[dict[str, object]]):
        self.join()
        assert made[-1]["broadcasts"] == 1

    def test_a_member_that_does_not_come_leaves_nothing_open(
        self, made: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
    ):
        start = WeightGroup.start_broadcast

        def without_peer(group: WeightGroup, bucket: torch.Tensor, *, timeout_s: float) -> object:
            made[-1]["peer_is_gone"] = True
            return start(group, bucket, timeout_s=timeout_s)

        monkeypatch.setattr(WeightGroup, "start_broadcast", without_peer)
        with pytest.raises(RuntimeError, match="aborted"):
            self.join()
        assert made[-1]["aborted"]
