"""One of two rollout servers fails pushes: the run goes on with the other, and takes it back."""

import json
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import UNTIL_STOPPED, wait_for_rows
from tests.processes import Service, free_port
from tests.warm_python import Forked

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("members")]

SMALL_BUCKETS = ("--weights.bucket_mib", 1, "--weights.bucket_timeout_s")
FAULTY = Path(__file__).with_name("faulty_rollout.py")


def wait_for(log: Path, text: str, trainer: Forked, *, after: int = 0, timeout_s: float = 120.0) -> int:
    """The place behind the first `text` in the log from `after` on."""
    deadline = time.monotonic() + timeout_s
    while (found := log.read_text().find(text, after)) < 0:
        assert trainer.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"no {text!r} in {log.read_text()[after:]}"
        time.sleep(0.05)
    return found + len(text)


def end(trainer: Forked, run_dir: Path, log: Path, *, max_staleness: int = 0) -> None:
    """Nothing is missing, nothing was trained on twice, and nothing is older than allowed."""
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(120) == 0, log.read_text()
    lines = read_jsonl(run_dir / "completions.jsonl")
    steps = [step["step"] for step in read_jsonl(run_dir / "metrics.jsonl") if "loss" in step]
    assert steps == list(range(1, len(steps) + 1))
    assert Counter(line["step"] for line in lines) == dict.fromkeys(steps, 32)
    ages = [line["step"] - version for line in lines for version, _ in line["versions"]]
    assert 0 <= min(ages) <= max(ages) <= max_staleness


def thaw(mortal: Service) -> None:
    """A process that stands still takes no SIGTERM."""
    with suppress(psutil.NoSuchProcess):
        mortal.engine().kill()


@pytest.mark.parametrize("sign", ["SIGKILL", "SIGSTOP"])
def test_an_engine_lost_at_any_point_of_a_push_leaves_the_run_to_the_other(sign: str, stack: Stack, tmp_path: Path):
    """Killed, or frozen behind a front that lives."""
    port, run_dir, log, fault = free_port(), tmp_path / "run", tmp_path / "trainer.log", tmp_path / "fault"
    urls = [stack.rollout.url, f"http://127.0.0.1:{port}"]
    faulty = partial(stack.rollout_server, program=FAULTY, environment={"GRPO_TEST_FAULT": str(fault)})
    trainer, seen = None, 0
    log.touch()
    try:
        for point in ("begin", "load", "finish"):
            with faulty(tmp_path / f"{point}.log", port) as mortal:
                mortal.wait_until_live()
                if trainer is None:
                    flags = (*UNTIL_STOPPED, "--rollout.urls", json.dumps(urls), *SMALL_BUCKETS, 30)
                    trainer = stack.start_trainer(run_dir, log, *flags)
                seen = wait_for(log, f"with {', '.join(urls)} over gloo", trainer, after=seen)
                fault.write_text(f"{sign} {point}")
                deadline = time.monotonic() + 60
                while fault.exists():
                    assert trainer.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, f"no push has come to {point}"
                    time.sleep(0.01)
                lost_s = time.monotonic()
                seen = wait_for(log, f" failed: {urls[1]}: ", trainer, after=seen)
                noticed_s = time.monotonic() - lost_s
                seen = wait_for(log, f"with {urls[0]} over gloo", trainer, after=seen)
                print(f"{sign} in {point}: noticed after {noticed_s:.1f} s, others {time.monotonic() - lost_s:.1f} s")
                if sign == "SIGSTOP":
                    thaw(mortal)
                assert mortal.process.wait(60.0) == 1, mortal.log.read_text()
            wait_for_rows(run_dir, (run_dir / "metrics.jsonl").read_bytes().count(b"\n") + 1, trainer)
        end(trainer, run_dir, log)
    finally:
        if trainer is not None:
            trainer.kill()


def test_a_server_nobody_can_connect_to_is_left_out_by_name_and_taken_back(stack: Stack, tmp_path: Path):
    port, run_dir, log, fault = free_port(), tmp_path / "run", tmp_path / "trainer.log", tmp_path / "fault"
    urls = [stack.rollout.url, f"http://127.0.0.1:{port}"]
    faulty = partial(stack.rollout_server, program=FAULTY, environment={"GRPO_TEST_FAULT": str(fault)})
    fault.write_text("closed")
    log.touch()
    with faulty(tmp_path / "closed.log", port) as closed:
        closed.wait_until_live()
        flags = (*UNTIL_STOPPED, "--rollout.urls", json.dumps(urls), *SMALL_BUCKETS, 5)
        trainer = stack.start_trainer(run_dir, log, *flags)
        try:
            seen = wait_for(log, f"rollout server {urls[1]} fails pushes and is left out of this one", trainer)
            seen = wait_for(log, f"with {urls[0]} over gloo", trainer, after=seen)
            seen = wait_for(
                log, f"rollout server {urls[1]} fails pushes and is left out of 2 of them", trainer, after=seen
            )
            fault.unlink()
            wait_for(log, f"with {', '.join(urls)} over gloo", trainer, after=seen)
            wait_for_rows(run_dir, (run_dir / "metrics.jsonl").read_bytes().count(b"\n") + 1, trainer)
            assert f"rollout server {urls[0]} fails pushes" not in log.read_text()
            end(trainer, run_dir, log)
        finally:
            trainer.kill()
