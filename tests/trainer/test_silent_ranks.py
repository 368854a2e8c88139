"""A rank that stands still ends the run: its process is frozen, or its main thread hangs."""

import re
import sys
import time
from pathlib import Path

import pytest

from grpo_trainer.ranks import one_machine

BOUND_S = 4.0
NOTICED_S = 60.0
"""Imports of two ranks on a busy machine, the wait of twice the bound, and the bound."""

# What every rank of a run does around its engine.
PROGRAM = """
import os, signal, sys, time
from types import SimpleNamespace
from grpo_trainer import __main__

rank, bound_s, faulty = int(os.environ["RANK"]), float(sys.argv[1]), sys.argv[2:]
if faulty[2:] == ["dies"]:
    # The others have their say before the stop that follows within 50 ms.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
FAULTS = {
    "frozen": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hangs": lambda: time.sleep(600),
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "told": lambda: os.kill(os.getpid(), signal.SIGTERM),
}

def fail(where):
    if [where, str(rank)] == faulty[:2]:
        time.sleep(1.0)  # it has reported where it is
        FAULTS[faulty[2]]()

def run(words):
    from grpo_trainer.observe.run_log import configure_logging
    from grpo_trainer.observe.run_status import RunStatus
    from grpo_trainer.ranks import silent_ranks
    from grpo_trainer.ranks.crew import Crew, follow
    from grpo_trainer.ranks.process_group import join_process_group
    from grpo_trainer.ranks.ranks import join_ranks
    from grpo_trainer.ranks.rendezvous import Rendezvous
    from grpo_trainer.ranks.stop_signal import StopSignal

    # One that freezes at once has not reported since its load.
    silent_ranks.PERIOD_S = 600.0 if ["at once", str(rank)] == faulty[:2] else 0.25
    configure_logging(rank=rank)
    status = RunStatus("run", heartbeat_bound_s=bound_s, silent_stages={"push": 600.0})
    status.enter_phase("loading", limit_s=60.0)
    stop = StopSignal()
    with Rendezvous(connect_s=60.0) as rendezvous, silent_ranks.SilentRanks(status, stop, rendezvous.connect):
        if rank == 0:
            rendezvous.announce({})
        else:
            with status.waiting_for_rank():
                rendezvous.wait_for_start(silence_s=60.0)
        status.enter_phase("joining", limit_s=60.0)
        join_process_group(timeout_s=60.0)
        ranks = join_ranks(silence_s=600.0)
        fail("joined")
        work = SimpleNamespace(update=lambda: fail("update"), push=lambda: fail("push"))
        if rank:
            stop.record_only()
            follow(ranks, work, ["update", "push"], status)
        else:
            with Crew(ranks, work, ["update", "push"], status) as crew:
                status.enter_stage("wait")
                if faulty[:1] == ["at once"]:
                    crew.do("update")
                    fail("at once")
                for _ in range(int(20 * bound_s)):
                    time.sleep(0.1)
                    status.beat()
                fail("between")
                status.know_run(max_steps=9, step=3)
                status.enter_stage("train")
                crew.do("update")
                status.enter_stage("push")
                crew.do("push")
                while faulty[2:] == ["told"] and not stop.requested:
                    time.sleep(0.1)
                    status.beat()
        fail("end")
    return 0

__main__._train = run
__main__.command(["run.yaml"])
"""


def run_two_ranks(folder: Path, *faulty: str) -> int:
    program = folder / "rank.py"
    program.write_text(PROGRAM)
    return one_machine.run_ranks([sys.executable, str(program), str(BOUND_S), *faulty], 2)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of two threads, whose launcher does not wait long for a frozen one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(one_machine, "FAILURE_LIMIT_S", 2.0)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("faulty", "said", "place"),
    [
        (("joined", "1", "frozen"), "rank 1 stands still: its process is frozen or cut off", "joining of step 1"),
        (("update", "1", "frozen"), "rank 1 stands still: its process is frozen or cut off", "train of step 4"),
        (("push", "1", "frozen"), "rank 1 stands still: its process is frozen or cut off", "push of step 4"),
        (("update", "1", "hangs"), "rank 1 stands still: no heartbeat for ", "train of step 4"),
        (("between", "0", "frozen"), "rank 0 stands still: its process is frozen or cut off", "wait of step 1"),
        (("at once", "0", "frozen"), "rank 0 stands still: its process is frozen or cut off", r"\w+ing of step 1"),
    ],
    ids=[
        "rank 1 frozen right behind its load",
        "rank 1 frozen",
        "rank 1 frozen in a stage that may be silent for long",
        "rank 1 hangs",
        "rank 0 frozen",
        "rank 0 frozen right behind its load",
    ],
)
def test_it_is_named_with_its_stage_and_all_ranks_end(
    faulty: tuple[str, ...], said: str, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    started_s = time.monotonic()
    assert run_two_ranks(tmp_path, *faulty) == 1
    assert time.monotonic() - started_s < NOTICED_S
    log = capfd.readouterr().err
    (line,) = [line for line in log.splitlines() if said in line]
    assert re.search(f"in stage {place}", line)
    assert "go on with --resume" in line
    assert "Traceback" not in log


@pytest.mark.deepspeed
def test_a_rank_that_waits_for_rank_0_does_not_stand_still(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert run_two_ranks(tmp_path) == 0
    assert "stands still" not in capfd.readouterr().err


@pytest.mark.deepspeed
def test_a_rank_that_freezes_when_the_run_has_ended_holds_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert run_two_ranks(tmp_path, "end", "1", "frozen") == 0
    assert "rank 1 did not end in time; it is killed" in capfd.readouterr().err


@pytest.mark.deepspeed
@pytest.mark.timeout(60)
def test_rank_0_learns_that_another_was_told_to_stop(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """As where one of several machines is drained by itself."""
    assert run_two_ranks(tmp_path, "update", "1", "told") == 0
    assert capfd.readouterr().err.count("rank 1 was told to stop: all ranks stop, with a checkpoint") == 1


@pytest.mark.deepspeed
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_told_without_frames(rank: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Rank 0 takes the store of the ranks with it."""
    assert run_two_ranks(tmp_path, {0: "between", 1: "update"}[rank], str(rank), "dies") == 1
    log = capfd.readouterr().err
    assert "error: another rank is gone or silent: " in log
    assert f"error: rank {rank} ended with signal 9; the other ranks are stopped" in log
    assert not any(text in log for text in ("Traceback", "frame #", "pytorch/"))
