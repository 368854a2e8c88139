"""The command, as a process of its own."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.idle_connection import assert_kept
from tests.reward import plugins_only
from tests.reward.plugins_only import PLAIN
from tests.reward.real_server import (
    COMMAND,
    LATE,
    OF_PLUGINS,
    PATIENCE_S,
    Server,
    all_gone,
    descendants,
    keeper_of_plugins,
    run,
)

from grpo_reward import serving
from grpo_reward.__main__ import main
from grpo_reward.config import Settings
from grpo_reward.executors.base import ExecutorUnavailable
from grpo_reward.executors.inline import InlineExecutor

pytestmark = pytest.mark.processes


async def test_serves_misbehaves_survives_and_ends(real_server):
    async with httpx.AsyncClient(base_url=real_server.url, trust_env=False, timeout=PATIENCE_S) as client:
        body = {"rewards": [{"name": "countdown"}], "samples": [
            {"completion": f"<answer>{text}</answer>", "columns": {"nums": [44, 19, 35], "target": 98}}
            for text in ("44+19+35", "44**19**35", "9**9**9")
        ]}  # fmt: skip
        answer = (await client.post("/v1/score", json=body)).json()
        assert [result["total"] for result in answer["results"]] == [1.0, 0.0, 0.0]

        # A worker that holds its interpreter lets the others answer.
        texts = ["", "hold the interpreter", "exit at once", "allocate", "fork", ""]
        bad = {"rewards": [{"name": "misbehave"}], "samples": [{"completion": text} for text in texts], "timeout_s": 1}
        work = asyncio.create_task(client.post("/v1/score", json=bad))
        answers = 0
        while not work.done():
            assert (await client.get("/livez")).status_code == 200
            answers += 1
            await asyncio.sleep(0.01)
        assert answers > 5
        statuses = [result["rewards"]["misbehave"]["status"] for result in (await work).json()["results"]]
        assert statuses == ["ok", "timeout", "error", "error", "ok", "ok"]
        metrics = (await client.get("/metrics")).text
        assert 'grpo_reward_worker_restarts_total{cause="timeout"} 1.0' in metrics
        assert 'grpo_reward_worker_restarts_total{cause="death"} 2.0' in metrics

        # Rubbish on the socket, and a body that is cut off.
        host, port = real_server.url.removeprefix("http://").split(":")
        for rubbish in (b"\x16\x03\x01\x02", b"POST /v1/score HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{"):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(rubbish)
        assert (await client.get("/livez")).status_code == 200

        # What others read must be JSON: no NaN, no broken text.
        samples = [{"completion": text} for text in ("nan", "surrogate", "none", "log")]
        text = (await client.post("/v1/score", json={"rewards": [{"name": "misbehave"}], "samples": samples})).text
        assert len(json.loads(text, parse_constant=pytest.fail)["results"]) == 4

        # SIGTERM: what runs has the grace period, and is not scored 0 after it.
        work = asyncio.create_task(client.post("/v1/score", json=LATE))
        while "queue_depth 1.0" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        children = descendants(real_server.process.pid)
        assert len(children) >= 3
        real_server.process.send_signal(signal.SIGTERM)
        answer = await work
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "shutting_down"
    assert real_server.wait() == 0
    assert all_gone(children)
    assert "Traceback" not in "".join(real_server.output)


@pytest.mark.faults
async def test_nothing_is_left_after_kill_9(real_server):
    body = LATE | {"samples": [{"completion": "fork and loop"}] * 2}
    async with httpx.AsyncClient(base_url=real_server.url, trust_env=False, timeout=PATIENCE_S) as client:
        work = asyncio.create_task(client.post("/v1/score", json=body))
        # Twice a keeper, a fork server, three workers; and what two of them forked.
        until = time.monotonic() + PATIENCE_S
        while len(children := descendants(real_server.process.pid)) < 12:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        assert real_server.stop(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(httpx.TransportError):
            await work
    assert all_gone(children)


@pytest.mark.faults
def test_a_reward_that_kills_the_fork_server_again_and_again_does_not_end_the_server(real_server):
    children = descendants(real_server.process.pid)
    keeper = keeper_of_plugins(real_server.process.pid)
    of_plugins = {keeper} | descendants(keeper)
    body = {"rewards": [{"name": "misbehave"}], "samples": [{"completion": "kill the parent"}, {"completion": ""}]}

    def statuses() -> list[str]:
        answer = httpx.post(f"{real_server.url}/v1/score", json=body, timeout=PATIENCE_S, trust_env=False).json()
        return [result["rewards"]["misbehave"]["status"] for result in answer["results"]]

    assert statuses() == ["error", "ok"]
    assert httpx.get(f"{real_server.url}/readyz", trust_env=False).status_code == 200
    assert all_gone(of_plugins)
    assert children - of_plugins < descendants(real_server.process.pid)
    assert 'restarts_total{cause="lost"} 6.0' in httpx.get(f"{real_server.url}/metrics", trust_env=False).text
    assert statuses() == ["error", "ok"]
    assert statuses() == ["error", "ok"]
    assert httpx.get(f"{real_server.url}/readyz", trust_env=False).status_code == 200


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--port", str(port))
    assert ended.returncode == 1
    assert ended.stderr == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; --port takes another\n"


def test_a_broken_plugin_is_one_line(tmp_path):
    """With the workers of the built-in rewards beside it, which end, too."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("from grpo_reward import reward\n@reward\ndef format(completion):\n    return 1.0\n")
    ended = run("--port", "0", "--plugin", str(plugin))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {plugin} defines the reward format, and so does the built-in format.py")
    assert ended.stderr.count("\n") == 1


def test_wrong_rewards_for_other_trainers_are_told_at_the_start():
    ended = run("--port", "0", "--adapter-rewards", "plian", "--plugin", PLAIN, built_in=False)
    assert ended.returncode == 1
    assert "did you mean plain?" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("rewards", "message"),
    [("acuracy", "did you mean accuracy?"), ("accuracy:x", "the weight of accuracy"), ("accuracy&a=1", "no option a")],
)
def test_rewards_for_other_trainers_that_could_never_score_stop_the_start(rewards, message):
    with pytest.raises(ExecutorUnavailable, match=re.escape(message)):
        serving._check_adapters(Settings(adapter_rewards=rewards), InlineExecutor())


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--host", "0.0.0.0"], {}, "set GRPO_API_TOKEN"),  # noqa: S104
        (["--host", "0.0.0.0"], {"GRPO_API_TOKEN": ""}, "GRPO_API_TOKEN is empty"),  # noqa: S104
        (["--worker", "2"], {}, "did you mean --workers?"),
    ],
)
def test_wrong_settings_are_one_line(arguments, environment, message, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in err
    assert err.count("\n") == 1


def test_the_token_of_the_environment_guards_it():
    server = Server(built_in=False, GRPO_API_TOKEN="secret")
    try:
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            assert client.get("/v1/rewards").status_code == 401
            assert client.get("/v1/rewards", headers={"Authorization": "Bearer secret"}).status_code == 200
            # Refused although most of the body never comes.
            with socket.create_connection(tuple(server.url.removeprefix("http://").split(":"))) as connection:
                head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                connection.sendall(head + b"Authorization: Bearer secret\r\nContent-Length: 99999999999\r\n\r\n{")
                assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    finally:
        status = server.stop(signal.SIGINT)
    assert status == 0
    assert "secret" not in "".join(server.output)


KEYS = {"JUDGE_API_KEY": "judge's", "REWARD_MODEL_API_KEY": "model's", "MY_KEY": "mine"}


@pytest.fixture(scope="module")
def with_keys(misbehaving) -> Iterator[Server]:
    """A server with a token and with keys for its rewards, two of which its operator has named for plugins."""
    named = ("--worker-env", "MY_KEY", "JUDGE_API_KEY")
    server = Server("--plugin", str(misbehaving), *named, GRPO_API_TOKEN="secret", **KEYS)
    yield server
    server.stop()


def asked(server: Server, completion: str) -> httpx.Response:
    """What the reward `misbehave` does."""
    body = {"rewards": [{"name": "misbehave"}], "samples": [{"completion": completion}]}
    headers = {"Authorization": "Bearer secret"}
    return httpx.post(f"{server.url}/v1/score", json=body, headers=headers, timeout=PATIENCE_S, trust_env=False)


def test_a_reward_cannot_take_the_token_from_the_server(with_keys):
    answer = asked(with_keys, "environment of the server")
    assert answer.status_code == 200
    score = answer.json()["results"][0]["rewards"]["misbehave"]
    assert (score["status"], score["detail"].partition(":")[0]) == ("error", "PermissionError")
    assert "secret" not in answer.text


def test_a_signal_while_rewards_load_ends_it(tmp_path):
    plugin = tmp_path / "slow_to_load.py"
    plugin.write_text("import time\nprint('loading', flush=True)\ntime.sleep(1000)\n")
    command = [*OF_PLUGINS, "--port", "0", "--plugin", str(plugin)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "loading" in process.stderr.readline()
    children = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert all_gone(children)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_as_soon_as_it_says_that_it_serves_ends_it(number):
    program = f"""
import builtins, os, runpy, signal, sys

# Not as whoever runs the tests may have left it: under nohup, or in the background of a shell, it is ignored.
signal.signal({int(number)}, signal.SIG_DFL)

def print_and_signal(*arguments, **options):
    said(*arguments, **options)
    os.kill(os.getpid(), {int(number)})

said, builtins.print = print, print_and_signal
runpy.run_path({plugins_only.__file__!r}, run_name="__main__")
"""
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "grpo-reward serves" in done.stdout
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_what_started_it_may_have_blocked_and_ignored_signals():
    program = f"""
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGINT, signal.SIGHUP}})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv({sys.executable!r}, {[*COMMAND, "--port", "0", "--workers", "1"]!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        sample = {"completion": "```python\nprint(input())\n```", "columns": {"tests": [{"input": "1", "output": "1"}]}}
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
            answer = client.post("/v1/score", json={"rewards": [{"name": "code"}], "samples": [sample]}).json()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert answer["results"][0]["rewards"]["code"]["status"] == "ok", answer


@pytest.mark.faults
def test_a_standard_output_that_is_full_does_not_stop_it():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port), "--workers", "1"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    until = time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200:
                    break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=PATIENCE_S)[1]
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    assert f"grpo-reward serves http://127.0.0.1:{port}" in errors


def test_json_lines_on_request():
    server = Server(built_in=False, GRPO_LOG_FORMAT="json")
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.output[1].splitlines()]
    assert lines
    assert {line["service"] for line in lines} == {"reward"}


def test_an_allowed_url_that_is_none_is_told_at_the_start():
    ended = run("--port", "0", "--allowed-url", "http://judge:8000", "judge.example/v1")
    assert ended.returncode == 1
    assert "--allowed-url: 'judge.example/v1' cannot be called: it must begin with http://" in ended.stderr


def test_version_and_usage():
    version = subprocess.run([*COMMAND[:-1], "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert version.stdout.startswith("grpo-reward ")
    nothing = subprocess.run(COMMAND[:-1], capture_output=True, text=True, timeout=PATIENCE_S)
    assert nothing.returncode == 2
    assert "usage: grpo-reward serve" in nothing.stderr


@pytest.mark.faults
def test_a_standard_error_that_nobody_reads_does_not_stop_it(tmp_path: Path):
    plugin = tmp_path / "talk.py"
    plugin.write_text(
        "import sys\nfrom grpo_reward import reward\n\n\n@reward\ndef talk(completion):\n"
        "    sys.stderr.write('x' * 200_000)\n    return 1.0\n"
    )
    command = [sys.executable, "-m", "grpo_reward", "serve", "--port", "0", "--workers", "1", "--plugin", str(plugin)]
    with subprocess.Popen(
        [*command, "--log-level", "debug"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
            body = {"rewards": [{"name": "talk"}], "samples": [{"completion": ""}], "timeout_s": 1.0}
            (result,) = client.post("/v1/score", json=body).json()["results"]
            assert result["rewards"]["talk"]["status"] == "timeout", "its own output blocks it"
            for _ in range(50):  # each is a line of the server's log
                assert client.post("/v1/score", json=body | {"samples": []}).status_code == 200
                assert client.get("/livez").status_code == 200
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_the_keys_of_judge_and_reward_model_reach_no_plugin(with_keys):
    answer = asked(with_keys, "environment").json()
    seen = answer["results"][0]["rewards"]["misbehave"]["log"]["environment"]
    assert {name: seen.get(name) for name in KEYS} == {
        "JUDGE_API_KEY": None, "REWARD_MODEL_API_KEY": None, "MY_KEY": "mine"
    }  # fmt: skip
    pid = with_keys.process.pid
    of_plugins = {keeper_of_plugins(pid), *descendants(keeper_of_plugins(pid))}
    told = [
        name.encode() in Path(f"/proc/{process}/environ").read_bytes()
        for process in descendants(pid) - of_plugins
        for name in KEYS
    ]
    assert told, "the workers of the built-in rewards"
    assert all(told)


def test_a_client_that_trains_between_two_batches_finds_its_connection(with_keys):
    assert_kept(with_keys.url)
