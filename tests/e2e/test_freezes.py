"""A part stands still: nothing that its peers hold on to tells them, as a killed one's closed connections do."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import UNTIL_STOPPED, assert_same_run, wait_for_rows, wait_for_step
from tests.e2e.test_failing_member import end, wait_for
from tests.processes import Service, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]

FREEZE_S = 12.0
"""Longer than a probe, and than the silence that counts as a death in a push."""


@contextmanager
def frozen(server: Service) -> Iterator[None]:
    """Its front, its engine and all its children stand still."""
    processes = [server.process.pid, *(child.pid for child in server.children())]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("who", ["rollout", "reward", "trainer"])
def test_a_part_that_stands_still_for_a_while_changes_nothing(
    who: str, stack: Stack, undisturbed: Path, tmp_path: Path
):
    run_dir, log = tmp_path / "frozen", tmp_path / "trainer.log"
    trainer = stack.start_trainer(run_dir, log, "--max_steps", 4)
    wait_for_step(run_dir, 1, trainer)
    if who == "trainer":
        trainer.send_signal(signal.SIGSTOP)
        time.sleep(FREEZE_S)
        trainer.send_signal(signal.SIGCONT)
    else:
        with frozen(stack.rollout if who == "rollout" else stack.reward):
            time.sleep(FREEZE_S)
    assert trainer.wait(200) == 0, log.read_text()
    assert_same_run(undisturbed, run_dir)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_one_of_two_servers_that_stands_still_leaves_the_run_to_the_other_and_is_taken_back(
    stack: Stack, tmp_path: Path, max_staleness: int
):
    port, run_dir, log = free_port(), tmp_path / "halved", tmp_path / "trainer.log"
    urls = [stack.rollout.url, f"http://127.0.0.1:{port}"]
    flags = (*UNTIL_STOPPED, "--algorithm.max_staleness", max_staleness, "--weights.in_flight", "wait")
    log.touch()
    with stack.rollout_server(tmp_path / "second.log", port) as second:
        second.wait_until_live()
        trainer = stack.start_trainer(run_dir, log, *flags, "--rollout.urls", json.dumps(urls))
        try:
            seen = wait_for(log, f"with {', '.join(urls)} over gloo", trainer)
            wait_for_rows(run_dir, 4, trainer)
            with frozen(second):
                frozen_s = time.monotonic()
                seen = wait_for(log, f"with {urls[0]} over gloo", trainer, after=seen)
                print(f"the other alone after {time.monotonic() - frozen_s:.1f} s")
                # From here on no step waits for the server that is away.
                count = (run_dir / "metrics.jsonl").read_bytes().count(b"\n")
                wait_for_rows(run_dir, count + 8, trainer)
                rows = [row for row in read_jsonl(run_dir / "metrics.jsonl")[count + 2 : count + 8] if "loss" in row]
                assert max(float(str(row["weights/push_s"])) for row in rows) < 5.0, "a probe of it takes 5 s"
            wait_for(log, f"with {', '.join(urls)} over gloo", trainer, after=seen)
            end(trainer, run_dir, log, max_staleness=max_staleness)
            assert all(len(one["versions"]) == 1 for one in read_jsonl(run_dir / "completions.jsonl"))
        finally:
            trainer.kill()
