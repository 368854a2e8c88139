"""The other kinds of model and engine, two servers in one group, tokens, and how servers end.

`server` of the folder engine is tied and eager. Here are the other three of tied/untied × eager/compiled. The tests of
a class run in order, and the last one stops what they share.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from grpo_proto.messages.errors import FatalError
from tests.processes import BIN, ROLLOUT_ENVIRONMENT, free_port, gone_within, rollout_command
from tests.rollout.conftest import Server, logprob_error, long_request, started, until_running
from tests.rollout.pushing import Trainer, manifest_of
from tests.tiny_model import save_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engines")]
TOKEN = "a-token-for-tests"
FP32_BOUND, BF16_BOUND = 1e-4, 0.02


@pytest.fixture(scope="class")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Untied, float32, with a token: one eager and one compiled server, started side by side."""
    # vLLM takes float32 checkpoints down to bfloat16 unless told otherwise.
    kind = partial(started, tied=False, dtype=torch.float32, token=TOKEN)
    folders = [tmp_path_factory.mktemp(name) for name in ("untied-eager", "untied-compiled")]
    with (
        kind(folders[0], "--dtype", "float32", "--enforce-eager") as eager,
        kind(folders[1], "--dtype", "float32") as compiled,
    ):
        for server in (eager, compiled):
            server.running.wait_until_live()
        yield eager, compiled


@pytest.fixture(scope="class")
def tied_compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("tied-compiled"), tied=True, dtype=torch.bfloat16) as server:
        server.running.wait_until_live()
        yield server


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
        processes = tied_compiled.running.children()
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

    def test_a_port_in_use(self, tmp_path: Path):
        model = save_tiny_model(tmp_path)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
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
