"""The command on real Ray clusters of several nodes, which come, go, fall silent and let nobody in."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("ray")]

PATIENCE_S = 90.0
TICK_S = 0.1
PLUGIN = """
import os, time
from grpo_reward import Score, reward

@reward
def where(completion: str) -> Score:
    time.sleep(0.2)
    pid = os.getpid()
    for _ in ("fork server", "keeper", "actor"):
        with open(f"/proc/{pid}/stat") as status:
            pid = int(status.read().rpartition(")")[2].split()[1])
    return Score(1.0, log={"actor": pid})
"""
PROGRAM = """
import sys
from grpo_reward.executors import ray
ray.HEAD_LIMIT_S = float(sys.argv.pop(1))
from grpo_reward.__main__ import main
main(sys.argv[1:])
"""


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Ray's own: its sockets need short paths, and the last cluster that it remembers is not to be ours."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    for pid in writers(folder):  # a raylet that was killed leaves its agents, which end in a minute or so
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def writers(folder: Path) -> set[int]:
    """Process ids of those that have a file of it open."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.readlink().is_relative_to(folder):
                found.add(int(descriptor.parts[2]))
    return found - {os.getpid()}


@pytest.fixture
def cluster(ray_folder: Path) -> Iterator[Any]:
    """A head without a CPU. `add_node` starts another raylet on this machine."""
    from ray.cluster_utils import Cluster

    class SmallCluster(Cluster):
        """Without what nobody needs here: Ray gives a node 30 s to start, and all its processes load Ray at once."""

        def add_node(self, **named: Any) -> Any:
            return super().add_node(include_log_monitor=False, no_monitor=True, **named)

    cluster = SmallCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., "Server"]]:
    servers = []
    plugin = tmp_path / "where.py"
    plugin.write_text(PLUGIN)

    def start(address: str, **options: float) -> Server:
        servers.append(Server(address, plugin, **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.terminate()
            try:
                server.process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.communicate()


class Server:
    """Has one worker on each node, and ends `head_limit_s` after the head did."""

    def __init__(self, address: str, plugin: Path, head_limit_s: float = 40.0):
        arguments = ["serve", "--port", "0", "--executor", "ray", "--workers", "1", "--plugin", str(plugin)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(head_limit_s), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "RAY_ADDRESS": address},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "grpo-reward serves http://" in line, line + self.process.communicate(timeout=PATIENCE_S)[1]
        self.url = line.split()[2]

    async def request(self, method: str, path: str, **content: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=PATIENCE_S) as client:
            return await client.request(method, path, **content)

    async def score(self, num_samples: int) -> httpx.Response:
        body = {"rewards": [{"name": "where"}], "samples": [{"completion": ""}] * num_samples}
        return await self.request("POST", "/v1/score", json={**body, "timeout_s": 60, "deadline_s": 60})

    async def actors(self, num_samples: int = 20) -> set[int]:
        """Process ids of the nodes' actors that scored; every sample must have its score."""
        answer = await self.score(num_samples)
        assert answer.status_code == 200, answer.text
        scores = [result["rewards"]["where"] for result in answer.json()["results"]]
        assert [score["status"] for score in scores] == ["ok"] * num_samples, scores
        return {score["log"]["actor"] for score in scores}

    async def until_ready_is(self, status: int) -> str:
        until = time.monotonic() + PATIENCE_S
        while (answer := await self.request("GET", "/readyz")).status_code != status:
            assert time.monotonic() < until, f"/readyz never became {status}"
            await asyncio.sleep(TICK_S)
        return answer.text


async def test_a_node_that_goes_and_one_that_comes(cluster, serve):
    """Nothing is lost, the server stays ready, and the plugin is on the new node too."""
    cluster.add_node(num_cpus=1)
    second = cluster.add_node(num_cpus=1)
    server = serve(cluster.address)
    before = await server.actors()
    assert len(before) == 2

    work = asyncio.create_task(server.actors(60))
    await asyncio.sleep(1.0)
    assert not work.done()
    cluster.remove_node(second, allow_graceful=False)
    while not work.done():
        assert (await server.request("GET", "/readyz")).status_code == 200
        await asyncio.sleep(TICK_S)
    assert await work <= before
    left = await server.actors()
    assert len(left) == 1

    cluster.add_node(num_cpus=1)
    until = time.monotonic() + PATIENCE_S
    while len(after := await server.actors()) < 2:
        assert time.monotonic() < until, "the new node was never used"
    assert after & before == left


async def test_an_only_node_that_falls_silent_and_comes_back(cluster, serve):
    """First one that is only slow, then one that died, which Ray starts anew."""
    cluster.add_node(num_cpus=1)
    server = serve(cluster.address)
    (actor,) = await server.actors()
    os.kill(actor, signal.SIGSTOP)
    try:
        waiting = asyncio.gather(*(server.score(2) for _ in range(20)))  # more than have a turn
        assert "no node of the Ray cluster answers" in await server.until_ready_is(503)
        for answer in (*await waiting, await server.score(2)):
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "not_ready"
    finally:
        os.kill(actor, signal.SIGCONT)
    await server.until_ready_is(200)
    assert await server.actors() == {actor}

    os.kill(actor, signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while (answer := await server.score(2)).status_code == 503:  # where starting it anew takes long
        assert time.monotonic() < until, "the node never came back"
        await asyncio.sleep(TICK_S)
    assert answer.status_code == 200, answer.text
    assert await server.actors() != {actor}


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_head_that_is_gone_ends_the_server(cluster, serve, replaced):
    cluster.add_node(num_cpus=1)
    server = serve(cluster.address, head_limit_s=15.0)
    await server.actors()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)
    cluster.head_node.kill_gcs_server()
    if replaced:  # without a database it is another cluster
        cluster.head_node.start_gcs_server()
    await server.until_ready_is(503)  # for want of a node or of the head: on a busy machine either is noticed first
    errors = server.process.communicate(timeout=PATIENCE_S)[1]
    assert server.process.returncode == 1
    assert "error: the head of the Ray cluster has not answered for 15 s" in errors


def test_a_cluster_that_wants_a_token_says_so(ray_folder: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "the-token-of-the-cluster"}
    head = subprocess.Popen(
        [*command, "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **token},
    )  # fmt: skip
    try:
        assert head.stdout is not None
        assert any("Ray runtime started" in line for line in head.stdout)
        done = subprocess.run(
            [sys.executable, "-m", "grpo_reward", "serve", "--port", "0", "--executor", "ray"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={**os.environ, **token, "RAY_AUTH_TOKEN": "another-token", "RAY_ADDRESS": f"127.0.0.1:{port}"},
        )  # fmt: skip
    finally:
        head.terminate()
        head.communicate(timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "error: the Ray cluster asks for a token" in done.stderr
    assert "RAY_AUTH_TOKEN" in done.stderr
