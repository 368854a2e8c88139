"""Episodes on two rollout servers, one of which is lost: its episodes are played again by the other, and no others."""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import UNTIL_STOPPED, wait_for_rows
from tests.e2e.test_episodes import FLAGS, accounted_for, open_sessions
from tests.e2e.test_failing_member import wait_for
from tests.e2e.test_freezes import frozen
from tests.processes import Service, free_port
from tests.warm_python import Forked

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]


@contextmanager
def killed(server: Service) -> Iterator[None]:
    for process in (psutil.Process(server.process.pid), *server.children()):
        process.kill()
    yield


def wait_until_one_begins(url: str, trainer: Forked) -> None:
    """Wait until an episode has just begun on this server: it takes longer than to lose the server then."""
    deadline, before = time.monotonic() + 60, sys.maxsize
    while (now := open_sessions(url)) <= before:
        assert trainer.poll() is None
        assert time.monotonic() < deadline, "no episode begins on this server"
        before = now
        time.sleep(0.02)


@pytest.mark.parametrize("lost", [killed, frozen])
def test_the_episodes_of_a_lost_server_are_played_again_and_no_others(lost, stack: Stack, tmp_path: Path):
    port, run_dir, log = free_port(), tmp_path / "run", tmp_path / "trainer.log"
    urls = [stack.rollout.url, f"http://127.0.0.1:{port}"]
    log.touch()
    flags = (*UNTIL_STOPPED, "--algorithm.max_staleness", 1)
    with stack.rollout_server(tmp_path / "second.log", port) as second:
        second.wait_until_live()
        trainer = stack.start_trainer(
            run_dir, log, *FLAGS, *flags, "--rollout.urls", json.dumps(urls), environment={"LETTERS_PAUSE_S": "0.5"}
        )
        try:
            seen = wait_for(log, f"with {', '.join(urls)} over gloo", trainer)
            wait_for_rows(run_dir, 3, trainer)
            wait_until_one_begins(urls[1], trainer)
            with lost(second):
                wait_for(log, f"with {urls[0]} over gloo", trainer, after=seen)
                wait_for_rows(run_dir, (run_dir / "metrics.jsonl").read_bytes().count(b"\n") + 3, trainer)
            trainer.send_signal(signal.SIGTERM)
            assert trainer.wait(120) == 0, log.read_text()
        finally:
            trainer.kill()
    said = log.read_text()
    assert f"it was lost with {urls[1]}" in said
    assert f"it was lost with {urls[0]}" not in said, "what the other server plays goes on over the change of members"
    steps = [step for step in read_jsonl(run_dir / "metrics.jsonl") if "loss" in step]
    assert all(map(accounted_for, steps))
    lines = read_jsonl(run_dir / "completions.jsonl")
    assert Counter(line["step"] for line in lines) == {step["step"]: 32 for step in steps}
