"""A process that was in a Gloo group ends with the status it means to end with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.gloo_ranks import ENVIRONMENT, meeting_program

A_THREAD_OF_GLOO_WANTS_THE_GIL = """
import sys, time, torch
own, all_of_them = torch.ones(3), [torch.empty(3) for _ in range(2)]
dist.barrier()
sys.setswitchinterval(30)  # so that nobody gets the GIL before this thread gives it up, at the end of its program
dist.all_gather(all_of_them, own, async_op=True)
gathered_by = time.monotonic() + 1.0
while time.monotonic() < gathered_by:
    pass
"""

END = """
from grpo_trainer.ranks.process_exit import end_process
end_process(0)
"""

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""So that output waits for the end of the process."""


@pytest.mark.deepspeed
def test_a_thread_of_gloo_that_still_frees_its_tensors_does_not_abort_the_process(tmp_path: Path):
    program = meeting_program(A_THREAD_OF_GLOO_WANTS_THE_GIL, tmp_path) + END
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=os.environ | ENVIRONMENT | {"RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    assert [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks] == [(b"", 0)] * 2


def end_of(program: str) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=BUFFERED
    )
    return result.returncode, result.stdout, result.stderr


def test_all_that_python_does_at_its_end_is_done():
    program = """
import atexit, threading, time
from grpo_trainer.ranks.process_exit import end_process
atexit.register(print, "registered", end="")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread", end=" "))).start()
end_process(3)
"""
    assert end_of(program) == (3, "thread registered", "")


C_PRINTS = """
import ctypes
from grpo_trainer.ranks.process_exit import end_process
ctypes.CDLL(None).printf(b"from C")
end_process(0)
"""


def test_what_c_libraries_have_printed_is_written():
    assert end_of(C_PRINTS) == (0, "from C", "")


@pytest.mark.parametrize(("output", "status"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 120)])
def test_output_that_is_closed_is_none_and_output_that_is_lost_is_told(output: str, status: int):
    """Each is what Python's own end gives."""
    program = "print('hello'); from grpo_trainer.ranks.process_exit import end_process; end_process(0)"
    command = ["sh", "-c", f'"$0" -c "$1" {output}', sys.executable, program]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False, env=BUFFERED)
    assert result.returncode == status, result.stderr


def test_ctrl_c_before_there_is_anything_to_save_is_one_line():
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom grpo_trainer import __main__\n"
        "__main__.main = lambda argv: signal.raise_signal(signal.SIGINT)\n__main__.command()"
    )
    assert end_of(program) == (130, "", "stopped\n")


def test_what_nobody_expected_is_printed_and_ends_with_1():
    program = "from grpo_trainer import __main__\n__main__.main = lambda argv: 1 / 0\n__main__.command()"
    status, said, errors = end_of(program)
    assert (status, said) == (1, "")
    assert errors.splitlines()[-1] == "ZeroDivisionError: division by zero"
