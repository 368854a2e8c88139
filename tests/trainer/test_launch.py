"""What starts the ranks: their exit status, their stop, and their end."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_trainer.ranks import launch, one_machine

PATIENCE_S = 120.0
ONE_MACHINE = "import sys; from grpo_trainer.ranks.one_machine import run_ranks; sys.exit(run_ranks(sys.argv[1:], 2))"
LAUNCHERS = {
    "one machine": ["-c", ONE_MACHINE, sys.executable],
    "torchrun": ["-m", "grpo_trainer.launch", "--standalone", "--nproc_per_node=2"],
}
BEGIN = """
import os, signal, sys, time
from pathlib import Path
mine = Path(__file__).with_name(os.environ["RANK"])
def here():
    mine.with_suffix(".new").write_text(str(os.getpid()))
    mine.with_suffix(".new").rename(mine)
"""


def a_rank(folder: Path, body: str) -> Path:
    """A program that does `body` and waits, in short sleeps: a signal just before one is handled behind it."""
    program = folder / "rank.py"
    wait = f"\nuntil_s = time.monotonic() + {PATIENCE_S}\nwhile time.monotonic() < until_s:\n    time.sleep(0.05)\n"
    program.write_text(BEGIN + body + wait)
    return program


def until(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def pids(folder: Path) -> list[int]:
    """Of the ranks that are here."""
    return [int(path.read_text()) for path in folder.glob("[01]")]


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@contextmanager
def launched(launcher: str, program: Path) -> Iterator["subprocess.Popen[str]"]:
    """The launcher of two ranks, when both are here."""
    command = [sys.executable, *LAUNCHERS[launcher], str(program)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: len(pids(program.parent)) == 2)
            yield process
        finally:
            process.kill()


@pytest.mark.deepspeed
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("rank", "fails", "status"), [(0, "sys.exit(3)", 3), (0, "os.kill(os.getpid(), 9)", 1), (1, "sys.exit(3)", 3)]
)
def test_several_ranks_end_as_the_first_that_failed(tmp_path: Path, launcher: str, rank: int, fails: str, status: int):
    """torchrun itself would end with 1 whatever happened."""
    program = a_rank(tmp_path, f"if os.environ['RANK'] == '{rank}':\n    {fails}")
    command = [sys.executable, *LAUNCHERS[launcher], str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == status, done.stderr
    assert f"error: rank {rank} ended with " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deepspeed
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_are_told_to_stop_have_time_to_save(tmp_path: Path, launcher: str):
    """torchrun would kill them after 30 s; a step and a checkpoint of a large model take longer."""
    save = "time.sleep(2), mine.with_suffix('.saved').write_text(os.environ.get('TORCH_ELASTIC_SHUTDOWN_TIMEOUT', ''))"
    program = a_rank(tmp_path, f"signal.signal(signal.SIGTERM, lambda *_: ({save}, sys.exit(0)))\nhere()")
    with launched(launcher, program) as process:
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    limits = [path.read_text() for path in tmp_path.glob("*.saved")]
    assert limits == ["" if launcher == "one machine" else str(launch.STOP_LIMIT_S)] * 2, err
    assert launch.stop_limit_s() == launch.STOP_LIMIT_S


def test_a_rank_that_is_frozen_and_one_that_does_not_stop_are_killed_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(launch.STOP_LIMIT_VARIABLE, "1")
    started_s = time.monotonic()
    frozen = "os.kill(os.getpid(), signal.SIGSTOP) if os.environ['RANK'] == '0' else None"
    program = a_rank(tmp_path, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nhere()\n{frozen}")

    def stop() -> None:
        until(lambda: len(pids(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert one_machine.run_ranks([sys.executable, str(program)], 2) == 143
    assert time.monotonic() - started_s < one_machine.FAILURE_LIMIT_S
    assert not any(map(runs, pids(tmp_path)))


def test_a_signal_reaches_every_rank_once_and_a_second_one_as_well(tmp_path: Path):
    count = "signal.signal(signal.SIGINT, lambda *_: mine.with_suffix('.log').open('a').write('x'))"
    program = a_rank(tmp_path, f"{count}\nhere()")

    def counted() -> list[str]:
        return [path.read_text() for path in tmp_path.glob("*.log")]

    with launched("one machine", program) as process:
        for signals in ("x", "xx"):
            process.send_signal(signal.SIGINT)
            until(lambda: counted() == [signals] * 2)  # noqa: B023 - it is called here


def test_ranks_die_with_what_started_them(tmp_path: Path):
    with launched("one machine", a_rank(tmp_path, "here()")) as process:
        process.kill()
        until(lambda: not any(map(runs, pids(tmp_path))))
