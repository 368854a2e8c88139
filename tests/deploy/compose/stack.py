"""`docker compose` on one project: start it, ask it, kill parts of it, remove it."""

import http.client
import json
import os
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .docker_host import DockerHost, run, say

PROJECT = "grpo-compose-test"
PROFILE = ("--profile", "cpu")


class Stack:
    """The CPU profile, in `folder`, on ports of its own."""

    def __init__(self, host: DockerHost, folder: Path, *, num_steps: int, cold_start_steps: int):
        self.host = host
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.ports = {name: _free_port() for name in ("reward", "rollout", "trainer")}
        (folder / "secrets").mkdir(exist_ok=True)
        (folder / "secrets/grpo_api_token").write_text(self.token + "\n")
        self.environment = {
            **os.environ,
            **{f"GRPO_{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
            "GRPO_COLD_START_STEPS": str(cold_start_steps),
            "GRPO_ROLLOUT_CPU_ARGS": "--heartbeat-timeout-s 20",
            "GRPO_TRAIN_ARGS": f"--max_steps {num_steps} --checkpoint.save_steps 3 --eval.eval_steps 0",
        }

    def compose(self, *words: str, timeout_s: float = 900) -> str:
        command = [*self.host.compose, "-p", PROJECT, *PROFILE, *words]
        return run(*command, cwd=self.folder, env=self.environment, timeout_s=timeout_s).stdout

    def container(self, service: str) -> str:
        """The id, of a stopped container too."""
        labels = (f"label=com.docker.compose.project={PROJECT}", f"label=com.docker.compose.service={service}")
        return run(self.host.docker, "ps", "-aq", "--filter", labels[0], "--filter", labels[1]).stdout.split()[0]

    def inspect(self, service: str) -> dict[str, Any]:
        return dict(json.loads(run(self.host.docker, "inspect", self.container(service)).stdout)[0])

    def kill_inside(self, service: str, script: str) -> None:
        """Run a script that may take its own container down with it, so that its exit status means nothing."""
        command = [self.host.docker, "exec", self.container(service), "sh", "-c", script]
        subprocess.run(command, capture_output=True, timeout=60, check=False)

    def logs(self, service: str, tail: int = 25) -> str:
        result = subprocess.run(
            [self.host.docker, "logs", "--tail", str(tail), self.container(service)],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        return result.stdout

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def get(self, service: str, path: str, *, token: str | None) -> tuple[int, str]:
        """Status and body. Raises OSError while nobody answers."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url(service) + path, headers=headers)  # noqa: S310 - always http
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - always http
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def step(self) -> int:
        """What the trainer says; -1 while it does not answer."""
        try:
            status, body = self.get("trainer", "/info", token=None)
        except (OSError, http.client.HTTPException):
            return -1
        return int(json.loads(body)["step"]) if status == 200 else -1

    def wait_until(self, what: str, done: Callable[[], bool], *, timeout_s: float) -> float:
        """Seconds it took. Raises AssertionError with the logs of all."""
        began_s = time.monotonic()
        while not done():
            if time.monotonic() - began_s > timeout_s:
                logs = "\n".join(f"--- {name}\n{self.logs(name)}" for name in ("reward", "rollout-cpu", "trainer-cpu"))
                raise AssertionError(f"waited {timeout_s:.0f} s for {what}\n{logs}")
            time.sleep(0.5)
        return time.monotonic() - began_s


@contextmanager
def stack(host: DockerHost, folder: Path, *, num_steps: int, cold_start_steps: int) -> Iterator[Stack]:
    """A Stack whose containers, networks and volumes are gone afterwards."""
    running = Stack(host, folder, num_steps=num_steps, cold_start_steps=cold_start_steps)
    try:
        yield running
    finally:
        say("removing containers and volumes of the test")
        running.compose("down", "--volumes", "--timeout", "10")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
