"""The command with workers on a Ray cluster of one node, which it starts itself, and without a cluster."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.reward.machinery import SLEEPING
from tests.reward.real_server import PATIENCE_S, Server, all_gone, descendants

from grpo_reward.executors.base import ExecutorUnavailable
from grpo_reward.executors.ray import LOAD_LIMIT_S
from grpo_reward.executors.ray_cluster import join_cluster

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def server(misbehaving: Path) -> Iterator[Server]:
    swift = misbehaving.with_name("swift_plugin.py")
    plugins = [f"{misbehaving}:misbehave", f"{misbehaving}:typed", f"{swift}:ends"]
    folders = set(Path("/tmp").glob("grpo-reward-*"))  # noqa: S108 - where Ray's actors put theirs
    server = Server("--executor", "ray", "--plugin", *plugins, RAY_ADDRESS="local")
    try:
        yield server
        children = descendants(server.process.pid)
        assert server.stop() == 0
        assert all_gone(children)
        assert set(Path("/tmp").glob("grpo-reward-*")) <= folders, "the plugins' copies"  # noqa: S108
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)


def wait_until_ready(server: Server) -> None:
    """While workers start again in place of those that were cut off, the service may refuse (503) for a while."""
    deadline = time.monotonic() + LOAD_LIMIT_S
    while httpx.get(f"{server.url}/readyz", trust_env=False, timeout=PATIENCE_S).status_code != 200:
        assert time.monotonic() < deadline, "not ready"
        time.sleep(0.1)


def test_a_ray_cluster_carries_the_same_work(server):
    """Limits, deaths, refusals and the deadline are as without Ray."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client:

        def statuses(*texts: str, **more: object) -> list[str]:
            wait_until_ready(server)
            body = {"rewards": [{"name": "misbehave"}], "samples": [{"completion": text} for text in texts], **more}
            answer = client.post("/v1/score", json=body).json()
            assert "results" in answer, answer
            return [result["rewards"]["misbehave"]["status"] for result in answer["results"]]

        assert client.get("/info").json()["workers"] == 2
        texts = ("", "loop", "exit at once", "none", "nan")
        assert statuses(*texts, timeout_s=1) == ["ok", "timeout", "error", "unscorable", "error"]
        assert statuses("loop", "loop", "loop", deadline_s=1) == ["timeout"] * 3
        assert statuses("", "") == ["ok", "ok"]  # what was cut off does not occupy the workers
        wrong = {"rewards": [{"name": "min_length", "params": {"min_chars": -1}}], "samples": [{"completion": ""}]}
        assert client.post("/v1/score", json=wrong).json()["error"]["type"] == "invalid_param"
        prompt = [{"role": "user", "content": "hello"}]
        sample = {"completion": "", "columns": {"gold": 1}, "prompt": prompt}
        typed = client.post("/v1/score", json={"rewards": [{"name": "typed"}], "samples": [sample]}).json()
        assert typed["results"][0]["rewards"]["typed"]["log"]["prompt"] == prompt
        ends = {"rewards": [{"name": "ends"}], "samples": [{"completion": "is 4", "columns": {"solution": "4"}}]}
        assert client.post("/v1/score", json=ends).json()["results"][0]["total"] == 1.0
        assert "batch_misbehave" not in client.get("/info").json()["rewards"]


async def test_what_is_quick_is_scored_while_all_workers_of_the_node_are_held(server):
    """Beside its workers a node has a spare one, and what was taken away there does not occupy it any longer."""
    quick = {
        "rewards": [{"name": "countdown"}],
        "samples": [{"completion": "<answer>3 + 4</answer>", "columns": {"nums": [3, 4], "target": 7}}],
        "deadline_s": LOAD_LIMIT_S,  # what the test before has killed may still be starting
    }
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=SLEEPING["deadline_s"]) as client:

        async def scores_what_is_quick() -> None:
            answer = (await client.post("/v1/score", json=quick)).json()
            assert [result["rewards"]["countdown"]["status"] for result in answer["results"]] == ["ok"], answer

        wait_until_ready(server)
        waiting = [asyncio.create_task(client.post("/v1/score", json=SLEEPING)) for _ in range(4)]
        await asyncio.sleep(1.0)
        for _ in range(5):
            await scores_what_is_quick()
        assert [task.result().text for task in waiting if task.done()] == []
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await scores_what_is_quick()


async def test_a_ray_cluster_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch):
    """On a busy machine: Ray itself gives a node 30 s, and raises what has no class of its own."""

    def times_out(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", times_out)
    with pytest.raises(ExecutorUnavailable, match="no Ray cluster: The current node timed out during startup"):
        await join_cluster()


def test_a_ray_cluster_that_is_gone_is_told():
    program = "import sys; from grpo_reward.executors import ray_cluster; ray_cluster.JOIN_LIMIT_S = 2.0; "
    program += "from grpo_reward.__main__ import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--port", "0", "--executor", "ray"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "RAY_ADDRESS": "192.0.2.1:6379"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: no Ray cluster answered within 2 s: set RAY_ADDRESS" in done.stderr
