"""Starting real services for tests: on free ports, with their output in a file, never left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.parent_death import end_with_parent
from tests.warm_python import Forked, WarmPython

BIN = Path(sys.executable).parent

ROLLOUT_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Small enough that several engines fit beside each other on a machine without a GPU."""

NAMES_AN_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception)\b: |\bexited with\b|\bSIG[A-Z]+\b")


def gone_within(processes: list[psutil.Process], timeout_s: float) -> bool:
    return not psutil.wait_procs(processes, timeout=timeout_s)[1]


_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port for a listener with SO_REUSEADDR, which every server here sets; connecting is refused until it is there.

    It stays bound for as long as the tests run, without a listener: nobody else who asks for a free port gets it.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    return int(reserved.getsockname()[1])


class Service:
    """A running service. `log` is the file of everything it printed."""

    def __init__(self, process: "subprocess.Popen[bytes] | Forked", log: Path, url: str):
        self.process, self.log, self.url = process, log, url

    def wait_until_live(self, timeout_s: float = 240.0) -> None:
        """Poll /livez until it says yes. Fails when the process ends before, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"exit status {self.process.returncode}:\n{self.tail()}"
            try:
                if httpx.get(f"{self.url}/livez", timeout=2.0, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        raise AssertionError(f"{self.url} did not come up within {timeout_s} s:\n{self.tail()}")

    def children(self) -> list[psutil.Process]:
        """Its engine and workers, not Python's resource tracker, which ends by itself."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if "resource_tracker" not in " ".join(child.cmdline())]

    def engine(self) -> psutil.Process:
        """The engine of a server without worker processes."""
        [engine] = self.children()
        return engine

    def tail(self, lines: int = 40) -> str:
        """The end of the log, behind the errors named before it: the first of several processes' is the cause."""
        printed = self.log.read_text(errors="replace").splitlines()
        named = [line for line in printed[:-lines] if NAMES_AN_ERROR.search(line)]
        return "\n".join([*dict.fromkeys(named), *printed[-lines:]])

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, then wait; a service that does not go is killed with its children, and the test fails."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"{self.url} did not stop within {timeout_s} s:\n{self.tail()}") from None


@contextmanager
def service(
    command: Sequence[str | Path],
    log: Path,
    *,
    port: int,
    environment: dict[str, str] | None = None,
    python: WarmPython | None = None,
) -> Iterator[Service]:
    """Run `command` in a process group of its own until the context ends, or the thread that entered it.

    `python`: fork it of this one. Its first word must then be a Python file.
    """
    if python is not None:
        process: subprocess.Popen[bytes] | Forked = python(*command, output=log, environment=environment)
    else:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=os.environ | (environment or {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
    running = Service(process, log, f"http://127.0.0.1:{port}")
    try:
        yield running
    finally:
        running.stop()


def rollout_command(model: Path, port: int, *flags: str) -> list[str | Path]:
    return [BIN / "grpo-rollout", "serve", model, "--port", str(port), "--max-model-len", "256", *flags]


def reward_command(port: int, *flags: str | Path) -> list[str | Path]:
    return [BIN / "grpo-reward", "serve", "--port", str(port), "--workers", "1", *flags]
