"""The other kinds of model and engine, two servers in one group, tokens, and how servers end.

`server` of conftest is tied and eager. Here are the other three of tied/untied × eager/compiled. The tests of a class
run in order, and the last ones kill what they share.
"""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest
import torch

from grpo_proto.errors import FatalError
from tests.processes import BIN, ROLLOUT_ENVIRONMENT, Service, free_port, rollout_command
from tests.rollout.conftest import Server, StartServer, logprob_error, long_request, until_running
from tests.rollout.pushing import Trainer, manifest_of
from tests.tiny_model import save_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
TOKEN = "a-token-for-tests"
FP32_BOUND, BF16_BOUND = 1e-4, 0.02


def children(running: Service) -> list[psutil.Process]:
    """Engine and worker processes, not Python's resource tracker, which ends by itself."""
    return [
        child
        for child in psutil.Process(running.process.pid).children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]


def gone_within(processes: list[psutil.Process], timeout_s: float) -> bool:
    return not psutil.wait_procs(processes, timeout=timeout_s)[1]


@pytest.fixture(scope="module")
def untied(start: StartServer) -> tuple[Server, Server]:
    """Untied, float32, with a token: one eager and one compiled server, started side by side."""
    pair = [
        # vLLM takes float32 checkpoints down to bfloat16 unless told otherwise.
        start(name, "--dtype", "float32", *flags, tied=False, dtype=torch.float32, token=TOKEN)
        for name, flags in (("untied-eager", ["--enforce-eager"]), ("untied-compiled", []))
    ]
    for running in pair:
        running.wait_until_live()
    eager, compiled = (Server(running, tied=False, dtype=torch.float32, token=TOKEN) for running in pair)
    return eager, compiled


@pytest.fixture(scope="module")
def tied_compiled(start: StartServer) -> Server:
    running = start("tied-compiled", tied=True, dtype=torch.bfloat16)
    running.wait_until_live()
    return Server(running, tied=True, dtype=torch.bfloat16)


class TestUntied:
    async def test_a_push_through_one_group_reaches_both_servers(self, untied: tuple[Server, Server]):
        async with Trainer(*(server.url for server in untied), token=TOKEN) as trainer:
            await trainer.join()
            for version in (1, 2):
                model = untied[0].model(version)
                await trainer.push(model, version)
                for server in untied:
                    answer = await server.sample(prompts=4, n=4, session=trainer.session, min_version=version)
                    assert logprob_error(model, answer) <= FP32_BOUND
                    assert logprob_error(server.model(0), answer) > 0.5

    async def test_a_push_that_one_server_does_not_survive_leaves_the_other_to_the_next(
        self, untied: tuple[Server, Server]
    ):
        """The survivor is stale at once, and takes the same version again in a new group without the dead one."""
        eager, compiled = untied
        async with Trainer(eager.url, compiled.url, token=TOKEN) as trainer:
            await trainer.join()
            await trainer.push(eager.model(3), 1)
        async with Trainer(eager.url, token=TOKEN) as survivor:
            await survivor.join()
            await survivor.push(eager.model(4), 1)
        assert logprob_error(eager.model(4), await eager.sample()) <= FP32_BOUND
        assert logprob_error(eager.model(3), await compiled.sample()) <= FP32_BOUND

    async def test_the_token_is_asked_for_everywhere_but_at_the_probes(self, untied: tuple[Server, Server]):
        async with httpx.AsyncClient(base_url=untied[0].url, trust_env=False) as http:
            for path in ("/livez", "/readyz", "/info", "/metrics"):
                assert (await http.get(path)).status_code == 200, path
            for path in ("/v1/rollouts", "/v1/weights/begin", "/v1/completions", "/tokenize", "/invocations"):
                assert (await http.post(path, json={})).status_code == 401, path
                headers = {"Authorization": "Bearer wrong"}
                assert (await http.post(path, json={}, headers=headers)).status_code == 401, path
        async with untied[0].client() as client:
            client._http.headers["Authorization"] = "Bearer wrong"
            with pytest.raises(FatalError):
                await client.rollouts(long_request("x"))
        assert TOKEN not in untied[0].running.log.read_text()

    def test_a_killed_engine_ends_the_server_with_an_error(self, untied: tuple[Server, Server]):
        running = untied[1].running
        processes = children(running)
        os.kill(next(p.pid for p in processes if "EngineCore" in " ".join(p.cmdline())), signal.SIGKILL)
        assert running.process.wait(30.0) == 1
        assert "the engine process has died" in running.log.read_text()
        assert gone_within(processes, 5.0)

    async def test_a_killed_server_leaves_no_engine(self, untied: tuple[Server, Server]):
        running = untied[0].running
        processes = children(running)
        assert len(processes) >= 2
        running.process.kill()
        assert gone_within(processes, 10.0)


class TestTiedCompiled:
    async def test_the_output_head_follows_the_embedding(self, tied_compiled: Server):
        async with tied_compiled.trainer() as trainer:
            await trainer.join()
            for version in (1, 2):
                await trainer.push(tied_compiled.model(version), version)
                answer = await tied_compiled.sample(prompts=4, n=4)
                assert logprob_error(tied_compiled.model(version), answer) <= BF16_BOUND

    async def test_the_probes_answer_while_a_push_hangs(self, tied_compiled: Server):
        async with tied_compiled.trainer() as trainer, httpx.AsyncClient(trust_env=False) as http:
            await trainer.join()
            # The engine's loop is blocked in a receive from now on; a probe that waited for it would find it over.
            await trainer.begin(1, manifest_of(tied_compiled.model(1)), bucket_timeout_s=60.0)
            for _ in range(20):
                assert (await http.get(f"{tied_compiled.url}/livez")).status_code == 200
                await asyncio.sleep(0.05)
            assert (await trainer.state()).state == "loading"

    async def test_sigterm_ends_it_cleanly_in_the_middle_of_sampling(self, tied_compiled: Server):
        await tied_compiled.heal()
        processes = children(tied_compiled.running)
        async with tied_compiled.client() as client:
            sampling = asyncio.create_task(client.rollouts(long_request("last")))
            await until_running(tied_compiled, None)
            assert await asyncio.to_thread(tied_compiled.running.stop, 30.0) == 0
            answer = await sampling
        ends = {completion.finish_reason for group in answer.groups for completion in group.completions}
        assert "abort" in ends
        assert gone_within(processes, 5.0)


class TestStart:
    def run(self, *flags: str | Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
        result = subprocess.run(
            [str(word) for word in (BIN / "grpo-rollout", "serve", *flags)],
            env=os.environ | ROLLOUT_ENVIRONMENT | (environment or {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return result.returncode, result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""

    def test_a_port_in_use(self, server: Server, tmp_path: Path):
        port = int(server.url.rsplit(":", 1)[1])
        model = save_tiny_model(tmp_path)
        status, message = self.run(*rollout_command(model, port)[2:])
        assert status == 1
        assert message == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"

    def test_a_model_that_is_not_there(self):
        status, message = self.run("/nowhere/model")
        assert status == 1
        assert message == "error: /nowhere/model is no model: /nowhere/model/config.json does not exist"

    def test_a_model_that_is_broken(self, tmp_path: Path):
        (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
        status, message = self.run(tmp_path, "--port", str(free_port()))
        assert status == 1
        assert message.startswith(f"error: cannot start {tmp_path}: ")

    def test_the_developer_mode(self, tmp_path: Path):
        status, message = self.run(tmp_path, environment={"VLLM_SERVER_DEV_MODE": "1"})
        assert status == 1
        assert message.startswith("error: VLLM_SERVER_DEV_MODE is set")
