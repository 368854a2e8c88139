"""What a whole run listens on: loopback, and nothing that another machine could reach."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]


def tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def listeners(pid: int) -> set[str]:
    """Each address and port that a process or one below it listens on."""
    return {
        f"{connection.laddr.ip} {connection.laddr.port} of process {process.pid}"
        for process in tree(pid)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@contextmanager
def frozen_in_a_push(stack: Stack, trainer: int, timeout_s: float = 200.0) -> Iterator[None]:
    """Stop the ranks of the trainer while the rollout server waits for their buckets."""

    def loads() -> bool:
        return httpx.get(f"{stack.rollout.url}/v1/weights", trust_env=False).json()["state"] == "loading"

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if loads():
            ranks = psutil.Process(trainer).children(recursive=True)
            for rank in ranks:
                rank.suspend()
            try:
                if loads():
                    yield
                    return
            finally:
                for rank in ranks:
                    rank.resume()
    raise AssertionError(f"no push within {timeout_s} s")


def test_a_run_of_two_ranks_listens_on_loopback_alone_in_a_push_too(stack: Stack, tmp_path: Path):
    log = tmp_path / "log"
    trainer = stack.start_trainer(
        tmp_path / "run", log, "--deepspeed.nproc_per_node", 2, "--server.enabled", True, "--max_steps", 500
    )
    try:
        with frozen_in_a_push(stack, trainer.pid):
            found = {
                name: listeners(pid)
                for name, pid in {
                    "rollout": stack.rollout.process.pid,
                    "reward": stack.reward.process.pid,
                    "trainer": trainer.pid,
                }.items()
            }
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(100) == 143, log.read_text()
    finally:
        trainer.kill()
    for name, addresses in found.items():
        assert addresses, name
        assert all(address.startswith(("127.", "::1 ")) for address in addresses), (name, addresses)
    processes = {address.rpartition(" ")[2] for address in found["trainer"]}
    assert len(processes) == 2, found["trainer"]  # both ranks, which meet in two groups
