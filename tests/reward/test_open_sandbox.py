"""The reward `code` where the kernel does not close what its sandbox has to: refused, named, or given up by name."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.reward import real_server
from tests.reward.real_server import PATIENCE_S, Server

pytestmark = pytest.mark.processes

WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
from errno import ENOSYS
from grpo_reward.sandbox.system_calls import _allow, _if_equal, _load, _refuse
program = b"".join([_load(0), _if_equal(444, 0, 1), _refuse(ENOSYS), _allow()])
code = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)), 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
PROGRAM = "<answer>\n```python\nprint(2)\n```\n</answer>"
SAMPLES = [{"completion": PROGRAM, "columns": {"tests": [{"input": "", "output": "2"}]}}]


@contextmanager
def server_without_landlock(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[httpx.Client]:
    command = [sys.executable, "-c", WITHOUT_LANDLOCK, "-m", "grpo_reward", "serve"]
    monkeypatch.setattr(real_server, "COMMAND", command)
    server = Server(*arguments)
    try:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.stop()


def score(client: httpx.Client, reward: str) -> httpx.Response:
    return client.post("/v1/score", json={"rewards": [{"name": reward}], "samples": SAMPLES})


def test_code_is_refused_with_the_reason_and_the_others_serve(monkeypatch: pytest.MonkeyPatch):
    with server_without_landlock(monkeypatch) as client:
        listed = {reward["name"]: reward.get("unavailable") for reward in client.get("/v1/rewards").json()["rewards"]}
        assert listed["code"] is not None
        assert "leaves open to programs here: files (Landlock: Function not implemented)" in listed["code"]
        assert "--code-sandbox open" in listed["code"]
        assert [name for name, reason in listed.items() if reason] == ["code"]
        refused = score(client, "code")
        assert refused.status_code == 422
        assert refused.json()["error"]["type"] == "reward_unavailable"
        assert listed["code"] in refused.json()["error"]["message"]
        assert score(client, "format").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_the_sandbox_is_given_up_by_name(monkeypatch: pytest.MonkeyPatch):
    with server_without_landlock(monkeypatch, "--code-sandbox", "open") as client:
        assert score(client, "code").json()["results"][0]["total"] == 1.0


def test_a_program_is_not_run_either_where_nobody_asked_before():
    """As by `grpo-reward try`, which has no server."""
    script = """
import json
from grpo_reward.sandbox.run import SandboxError, run_tests
try:
    run_tests("print(2)", [{"stdin": ""}], test_timeout_s=20.0, total_timeout_s=60.0, memory_bytes=512 << 20)
except SandboxError as error:
    print(json.dumps(str(error)))
"""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LANDLOCK, "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert "files (Landlock: Function not implemented)" in json.loads(done.stdout)
