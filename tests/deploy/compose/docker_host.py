"""A Docker that works: the one that runs, or Debian's, installed and started for the length of this test."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
FIRST_WITHOUT_BUILDKIT = 23
DEBIAN_PACKAGES = ("docker.io", "docker-compose", "iptables")


class CannotRun(Exception):  # noqa: N818 - a verdict on the machine, not on the stack
    """This machine cannot do it; the message says why."""


@dataclass(frozen=True)
class DockerHost:
    """The commands of a Docker whose daemon answers."""

    docker: str
    compose: tuple[str, ...]


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*command: str, timeout_s: float = 900, **more: object) -> subprocess.CompletedProcess[str]:
    """Output is kept, and shown when the command fails: then CalledProcessError."""
    result = subprocess.run(command, text=True, capture_output=True, timeout=timeout_s, check=False, **more)  # type: ignore[call-overload]
    if result.returncode:
        print(f"$ {' '.join(command)}\n{result.stdout[-4000:]}{result.stderr[-4000:]}", file=sys.stderr)
        result.check_returncode()
    return result


def answers(*command: str) -> bool:
    """Whether the command exists and ends with 0."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def need_root(purpose: str) -> None:
    if os.geteuid() != 0:
        raise CannotRun(f"{purpose} needs root, and this is user {os.geteuid()}")


def install_from_debian(*packages: str) -> None:
    """Raises CannotRun where apt-get does not exist or cannot fetch."""
    need_root(f"installing {', '.join(packages)}")
    if shutil.which("apt-get") is None:
        raise CannotRun("there is no Docker here, and no apt-get to install it with")
    say(f"installing {', '.join(packages)} from Debian")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run("apt-get", "update", "-qq", env=environment)
        install = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends")
        run(*install, *packages, env=environment)
    except subprocess.CalledProcessError as error:
        raise CannotRun(f"apt-get could not install {', '.join(packages)}") from error


@contextmanager
def docker_host(work: Path) -> Iterator[DockerHost]:
    """A DockerHost. A daemon that was started here is stopped at the end; one that ran already is left alone."""
    if shutil.which("dockerd") is None and not answers("docker", "info"):
        install_from_debian(*DEBIAN_PACKAGES)
    docker = _client()
    if answers(docker, "info"):
        yield DockerHost(docker, _compose(docker))
        return
    with _daemon(docker, work / "dockerd.log"):
        yield DockerHost(docker, _compose(docker))


def _client() -> str:
    """A client that can build: from version 23 on that takes a plug-in which not everybody has, Debian's is older."""
    found = [shutil.which("docker")]
    if daemon := shutil.which("dockerd"):
        found.append(str(Path(daemon).resolve().parent.parent / "bin/docker"))
    clients = [client for client in found if client and Path(client).exists()]
    for client in clients:
        version = run(client, "--version").stdout.removeprefix("Docker version ")
        if int(version.partition(".")[0]) < FIRST_WITHOUT_BUILDKIT or answers(client, "buildx", "version"):
            return client
    raise CannotRun(f"{' and '.join(clients) or 'no docker'} cannot build images: install Docker's buildx plug-in")


@contextmanager
def _daemon(docker: str, log: Path) -> Iterator[None]:
    need_root("starting dockerd")
    say(f"starting dockerd, which writes to {log}")
    with log.open("w") as output:
        daemon = subprocess.Popen(
            ["dockerd", "--storage-driver=overlay2"], stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not answers(docker, "info"):
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                raise CannotRun(f"dockerd did not start; the end of {log}:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield
    finally:
        daemon.terminate()
        daemon.wait(STOP_TIMEOUT_S)


def _compose(docker: str) -> tuple[str, ...]:
    if answers(docker, "compose", "version"):
        return (docker, "compose")
    if shutil.which("docker-compose") is None:
        install_from_debian("docker-compose")
    return ("docker-compose",)
