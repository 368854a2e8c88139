"""A server that is untied and compiled, its token, and servers that do not start.

Of tied/untied × eager/compiled, the folder engine has the two that are tied, and the runs in e2e have untied and eager.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from grpo_proto import RolloutClient
from grpo_proto.messages.errors import FatalError
from grpo_proto.messages.logprobs import LogprobsRequest
from tests.processes import BIN, ROLLOUT_ENVIRONMENT, free_port, rollout_command
from tests.rollout.conftest import Server, given, given_error, logprob_error, long_request, started
from tests.tiny_model import save_tiny_model
from tests.waiting import PATIENCE_S
from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engines")]
TOKEN = "a-token-for-tests"
FP32_BOUND = 1e-4
GUARDED = ("/v1/rollouts", "/v1/logprobs", "/v1/weights/begin", "/v1/completions", "/tokenize", "/invocations")


@pytest.fixture(scope="class")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Untied, compiled, float32, with a token."""
    folder = tmp_path_factory.mktemp("untied-compiled")
    # vLLM takes float32 checkpoints down to bfloat16 unless told otherwise.
    with started(folder, "--dtype", "float32", tied=False, dtype=torch.float32, token=TOKEN) as server:
        server.running.wait_until_live()
        yield server


class TestUntied:
    async def test_every_push_changes_what_is_served(self, untied: Server):
        async with untied.trainer() as trainer:
            await trainer.join()
            for version in (1, 2):
                model = untied.model(version)
                await trainer.push(model, version)
                answer = await untied.sample(prompts=4, n=4, session=trainer.session, min_version=version)
                assert logprob_error(model, answer) <= FP32_BOUND
                assert logprob_error(untied.model(0), answer) > 0.5

    async def test_given_tokens_have_the_logprobs_that_transformers_computes(self, untied: Server):
        sequences = [given(length, num_prompt_tokens) for length, num_prompt_tokens in ((2, 1), (40, 7), (255, 9))]
        async with untied.trainer() as trainer, untied.client() as client:
            await trainer.join(take_over=True)
            await trainer.push(untied.model(3), 5)
            answer = await client.logprobs(LogprobsRequest(sequences=sequences))
        assert given_error(untied.model(3), sequences, answer) <= 1e-5
        assert given_error(untied.model(0), sequences, answer) > 0.5
        assert {one.version for one in answer.sequences} == {5}
        assert answer.session == trainer.session

    async def test_the_token_is_asked_for_everywhere_but_at_the_probes(self, untied: tuple[Server, Server]):
        async with httpx.AsyncClient(base_url=untied.url, trust_env=False, timeout=PATIENCE_S) as http:
            for path in ("/livez", "/readyz", "/info", "/metrics"):
                assert (await http.get(path)).status_code == 200, path
            for path in GUARDED:
                assert (await http.post(path, json={})).status_code == 401, path
                headers = {"Authorization": "Bearer wrong"}
                assert (await http.post(path, json={}, headers=headers)).status_code == 401, path
        async with RolloutClient(untied.url, token="wrong") as client:
            with pytest.raises(FatalError):
                await client.rollouts(long_request("x"))
        assert TOKEN not in untied.running.log.read_text()


class TestStart:
    def run(self, *flags: object, folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
        words = (BIN / "grpo-rollout", "serve", *flags)
        environment = ROLLOUT_ENVIRONMENT | (environment or {})
        result = warm_vllm.run(*words, folder=folder, timeout_s=120.0, environment=environment)
        return result.returncode, result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""

    def test_a_port_in_use(self, tmp_path: Path):
        model = save_tiny_model(tmp_path / "model")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            status, message = self.run(*rollout_command(model, port)[2:], folder=tmp_path)
        assert status == 1
        assert message == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"

    def test_a_model_that_is_not_there(self, tmp_path: Path):
        status, message = self.run("/nowhere/model", folder=tmp_path)
        assert status == 2
        assert message == "error: /nowhere/model is no model: /nowhere/model/config.json does not exist"

    def test_a_model_that_is_broken(self, tmp_path: Path):
        (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
        status, message = self.run(tmp_path, "--port", free_port(), folder=tmp_path)
        assert status == 2, "no further try can succeed"
        assert message.startswith(f"error: cannot start {tmp_path}: ")
        assert "no-such-model" in message

    def test_the_developer_mode(self, tmp_path: Path):
        status, message = self.run(tmp_path, folder=tmp_path, environment={"VLLM_SERVER_DEV_MODE": "1"})
        assert status == 2
        assert message.startswith("error: VLLM_SERVER_DEV_MODE is set")
