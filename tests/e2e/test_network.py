"""The network between the services fails, and the run is the same one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.runs import assert_same_run, wait_for_step
from tests.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("network")]

PARTITION_S = 15.0


@pytest.fixture
def proxies(stack: Stack) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Between the trainer and the rollout server, and the reward server. Closed; weights go beside them."""
    ports = [int(server.url.rpartition(":")[2]) for server in (stack.rollout, stack.reward)]
    with TcpProxy(ports[0]).running() as rollout, TcpProxy(ports[1]).running() as reward:
        for proxy in (rollout, reward):  # to have a port that nobody else takes
            proxy.open()
        yield rollout, reward


def flags(rollout: TcpProxy, reward: TcpProxy) -> tuple[object, ...]:
    return ("--max_steps", 4, "--rollout.urls", f'["{rollout.url}"]', "--reward.url", reward.url)


def test_a_partition_heals_and_costs_no_sample(
    stack: Stack, proxies: tuple[TcpProxy, TcpProxy], undisturbed: Path, tmp_path: Path
):
    run_dir, log = tmp_path / "undisturbed", tmp_path / "log"
    trainer = stack.start_trainer(run_dir, log, *flags(*proxies))
    wait_for_step(run_dir, 1, trainer)
    for proxy in proxies:
        proxy.hold()
    time.sleep(PARTITION_S)
    assert trainer.poll() is None, log.read_text()
    for proxy in proxies:
        proxy.heal()
    assert trainer.wait(300) == 0, log.read_text()
    assert_same_run(undisturbed, run_dir)


def test_answers_that_are_cut_in_the_middle_are_asked_for_again(
    stack: Stack, proxies: tuple[TcpProxy, TcpProxy], undisturbed: Path, tmp_path: Path
):
    run_dir, log = tmp_path / "undisturbed", tmp_path / "log"
    trainer = stack.start_trainer(run_dir, log, *flags(*proxies))
    for step in (1, 2):
        wait_for_step(run_dir, step, trainer)
        for proxy in proxies:
            proxy.cut_next_answer(after_bytes=150)
    assert trainer.wait(300) == 0, log.read_text()
    assert [proxy.answers_to_cut for proxy in proxies] == [0, 0]
    assert_same_run(undisturbed, run_dir)


def test_servers_may_come_late_and_go_again(
    stack: Stack, proxies: tuple[TcpProxy, TcpProxy], undisturbed: Path, tmp_path: Path
):
    rollout, reward = proxies
    for proxy in proxies:
        proxy.close()
    run_dir, log = tmp_path / "undisturbed", tmp_path / "log"
    trainer = stack.start_trainer(run_dir, log, *flags(*proxies))
    time.sleep(8.0)
    reward.open()
    time.sleep(2.0)
    reward.close()
    rollout.open()
    time.sleep(2.0)
    assert trainer.poll() is None, log.read_text()
    reward.open()
    assert trainer.wait(300) == 0, log.read_text()
    assert_same_run(undisturbed, run_dir)
