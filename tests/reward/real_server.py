"""`grpo-reward serve` as a process of its own, for tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.reward import plugins_only

from grpo_reward.executors.descendants import processes

PATIENCE_S = 60.0
COMMAND = [sys.executable, "-m", "grpo_reward", "serve"]
OF_PLUGINS = [*plugins_only.COMMAND, "serve"]
LATE = {"rewards": [{"name": "misbehave"}], "samples": [{"completion": "loop"}], "timeout_s": 600, "deadline_s": 600}


class Server:
    """A started server; its port is what it printed. `built_in`: with the built-in rewards, too."""

    def __init__(self, *arguments: str, built_in: bool = True, **environment: str):
        self.process = subprocess.Popen(
            [*(COMMAND if built_in else OF_PLUGINS), "--port", "0", "--workers", "2", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "grpo-reward serves http://" in line, line + self.process.communicate()[1]
        self.url = line.split()[2]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        self.output = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


def descendants(pid: int) -> set[int]:
    """Process ids of the children, and of theirs."""
    parents = {process.pid: process.parent for process in processes()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def keeper_of_plugins(pid: int) -> int:
    """Process id of the one that starts the workers of plugins, for the server `pid`."""
    [found] = [
        process.pid
        for process in processes()
        if process.parent == pid and b"plugins" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    ]
    return found


def all_gone(pids: set[int]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while alive := {pid for pid in pids if Path(f"/proc/{pid}").exists()}:
        if time.monotonic() > until:
            return False
        pids = alive
        time.sleep(0.01)
    return True


def run(*arguments: str, built_in: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to start."""
    env, command = {**os.environ, **environment}, COMMAND if built_in else OF_PLUGINS
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=env)
