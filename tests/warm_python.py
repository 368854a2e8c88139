"""Trainer processes without the seconds of their imports: forks of a Python that has imported the libraries.

It is Python's own fork server. It computes nothing and has one thread, so a fork of it is what a fresh process is after
its imports. `tests/trainer/test_start.py`, and every run under torchrun, start the real command.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

LIBRARIES = ["torch", "transformers", "deepspeed", "grpo_trainer.run"]
READ_BY_IMPORTS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""What the imports print must not wait in a buffer that every fork would inherit."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LIBRARIES)


class Forked:
    """A running fork, with what tests use of `subprocess.Popen`."""

    def __init__(self, process: multiprocessing.process.BaseProcess):
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit status, or minus the signal that ended it. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def warm_python(
    *words: object, output: Path, errors: Path | None = None, environment: Mapping[str, str] | None = None
) -> Forked:
    """`python WORDS` (a file or -m) in a session of its own.

    What it prints is appended to `output`, standard error too unless it has a file of its own. `environment` comes on
    top of the tests' own.
    """
    with patch.dict(os.environ, READ_BY_IMPORTS | UNBUFFERED):
        forkserver.ensure_running()
    arguments = ([str(word) for word in words], output, errors or output, {**os.environ, **(environment or {})})
    # A daemon: it does not outlive the tests, whatever they forget.
    process = _context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    return Forked(process)


def _run(words: list[str], output: Path, errors: Path, environment: dict[str, str]) -> None:
    assert len(os.listdir("/proc/self/task")) == 1, "a library has started a thread, which no fork has"
    os.setsid()
    for descriptor, file in ((1, output), (2, errors)):
        with file.open("ab") as opened:
            os.dup2(opened.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
