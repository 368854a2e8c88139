"""Two trainers never write into one run folder."""

import errno
import fcntl
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from grpo_trainer.checkpoint.run_lock import only_trainer_in
from grpo_trainer.errors import UnavailableError
from grpo_trainer.ranks.stop_signal import StopRequested, StopSignal

HOLDS = """
import sys
from contextlib import nullcontext
from pathlib import Path
from grpo_trainer.checkpoint.run_lock import only_trainer_in
with only_trainer_in(Path(sys.argv[1]), timeout_s=0, interruptible=nullcontext):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(run_dir: Path) -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-c", HOLDS, str(run_dir)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


def test_a_second_trainer_names_the_first_and_goes_on_once_that_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with held_by_another(tmp_path) as other:
        with (
            pytest.raises(UnavailableError, match=rf"in use by process {other.pid} on \S+: it has held") as refused,
            only_trainer_in(tmp_path, timeout_s=0.5, interruptible=nullcontext),
        ):
            pass
        assert refused.value.exit_status == 3
        assert "waiting for its end, 0.5 s at most" in caplog.text
        other.kill()
        with only_trainer_in(tmp_path, timeout_s=30.0, interruptible=nullcontext):
            pass


def test_a_stop_ends_the_wait(tmp_path: Path):
    stop = StopSignal()
    stop.requested = True
    with (
        held_by_another(tmp_path),
        pytest.raises(StopRequested),
        only_trainer_in(tmp_path, timeout_s=60.0, interruptible=stop.interruptible),
    ):
        pass


def test_a_file_system_without_locks_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with caplog.at_level(logging.WARNING), only_trainer_in(tmp_path, timeout_s=0, interruptible=nullcontext):
        assert "cannot be locked here (No locks available)" in caplog.text
