"""Trainers and rollout servers without the seconds of their imports: forks of a Python that has imported the libraries.

It is Python's own fork server. It computes nothing and has one thread of Python, so a fork of it is what a fresh
process is after its imports; at its end it runs no `atexit`. What it would spawn it forks: such an engine, or worker of
one, has what its server has imported and patched. What starts the real commands: every run under torchrun,
`tests/trainer/test_start.py`, and for the rollout server the shared one of `tests/e2e`, whose engine is spawned, and
its soak.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import context, forkserver, process, resource_tracker
from pathlib import Path
from unittest.mock import patch

from tests.parent_death import end_with_parent

READ_BY_IMPORTS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""What the imports print must not wait in a buffer that every fork would inherit."""


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


class WarmPython:
    """A Python that has imported `libraries`, and what is forked of it. It starts with the first fork."""

    def __init__(self, *libraries: str):
        self._libraries = libraries
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload(list(libraries))

    def __call__(
        self, *words: object, output: Path, errors: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Forked:
        """`python WORDS` (a file or -m) in a session of its own.

        What it prints is appended to `output`, standard error too unless it has a file of its own. `environment` comes
        on top of the tests' own, too late for what the imports read.
        """
        with patch.dict(os.environ, READ_BY_IMPORTS | UNBUFFERED):
            self._server.ensure_running()
        whole = {**os.environ, **(environment or {})}
        arguments = (self._libraries, [str(word) for word in words], output, errors or output, whole)
        # A daemon: it does not outlive the tests, whatever they forget.
        forked = multiprocessing.get_context("forkserver").Process(target=_run, args=arguments, daemon=True)
        # Python has one fork server of its own in a process, and asks it by this name.
        with patch.object(forkserver, "connect_to_new_process", self._server.connect_to_new_process):
            forked.start()
        return Forked(forked)

    def run(
        self, *words: object, folder: Path, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """The same to its end, with what it printed, which is kept in `folder`. Raises subprocess.TimeoutExpired."""
        output, errors = folder / "output", folder / "errors"
        output.unlink(missing_ok=True)
        errors.unlink(missing_ok=True)
        forked = self(*words, output=output, errors=errors, environment=environment)
        try:
            status = forked.wait(timeout_s)
        finally:
            forked.kill()
        return subprocess.CompletedProcess(words, status, output.read_text(), errors.read_text())


warm_python = WarmPython("torch", "transformers", "deepspeed", "grpo_trainer.run")
warm_vllm = WarmPython("tests.rollout.vllm_imports")


def _run(libraries: tuple[str, ...], words: list[str], output: Path, errors: Path, environment: dict[str, str]) -> None:
    os.setsid()
    end_with_parent()
    # Let the fork server see the end of the tests: every fork holds the pipe by which it would.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    forkserver._forkserver._forkserver_alive_fd = None
    for descriptor, file in ((1, output), (2, errors)):
        with file.open("ab") as opened:
            os.dup2(opened.fileno(), descriptor)
    # The fork server does not tell of an import that failed.
    assert sys.modules.keys() >= set(libraries), f"imported are not: {set(libraries) - sys.modules.keys()}"
    # A fork has none of the others. jemalloc, which comes with Arrow, starts its own anew.
    parent = os.getppid()
    others = {task.parent.name: task.read_text().strip() for task in Path(f"/proc/{parent}/task").glob("*/comm")}
    del others[str(parent)]
    assert set(others.values()) <= {"jemalloc_bg_thd"}, f"a library has started threads: {others}"
    # To multiprocessing, a fresh process is nobody's child, may have children, by the platform's own method, and has no
    # tracker of shared memory yet.
    process._parent_process = None
    multiprocessing.set_start_method(None, force=True)
    # Fork what asks to be spawned. vLLM's engine would import everything again, which is half of the time of its start.
    context._concrete_contexts["spawn"] = context.ForkContext()
    resource_tracker._resource_tracker._fd = None
    process.current_process()._config["daemon"] = False
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
