"""One engine over two machines, here two processes of one: `--headless` on the second."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.processes import BIN, ROLLOUT_ENVIRONMENT, Service, free_port, rollout_command, service
from tests.rollout.adapters.adapter import Adapter, AdapterTrainer, make_base
from tests.rollout.conftest import Server, logprob_error
from tests.rollout.pushing import Trainer
from tests.tiny_model import save_tiny_model
from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]
FP32_BOUND = 1e-4
NUM_WORKERS = 2


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Service]]:
    folder = tmp_path_factory.mktemp("machines")
    model = save_tiny_model(folder / "model", dtype=torch.float32)
    make_base().save_pretrained(model)  # which an adapter is of
    port = free_port()
    flags = [
        "--dtype=float32", "--enforce-eager", "--tensor-parallel-size=2", "--distributed-executor-backend=mp",
        "--enable-lora", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}",
    ]  # fmt: skip
    first = rollout_command(model, port, *flags, "--node-rank=0")
    second = [BIN / "grpo-rollout", "serve", model, "--max-model-len=256", *flags, "--node-rank=1", "--headless"]
    with (
        service(first, folder / "first.log", port=port, environment=ROLLOUT_ENVIRONMENT, python=warm_vllm) as running,
        service(second, folder / "second.log", port=port, environment=ROLLOUT_ENVIRONMENT, python=warm_vllm) as workers,
    ):
        try:
            running.wait_until_live()
        except AssertionError as failure:
            failure.add_note(f"the second machine:\n{workers.tail()}")
            raise
        yield Server(running, tied=False, dtype=torch.float32), workers


async def test_an_adapter_reaches_the_workers_of_both(machines: tuple[Server, Service]):
    """First: it needs the base. Each worker keeps its part of the layers, and their sizes are those of the whole."""
    server, _ = machines
    async with AdapterTrainer(server.url, workers_of_each=NUM_WORKERS) as trainer:
        await trainer.join()
        for version in (1, 2):
            adapter = Adapter(version)
            await trainer.push_adapter(adapter, version)
            answer = await server.sample(prompts=4, n=4, session=trainer.session, min_version=version)
            assert logprob_error(adapter.model, answer) <= FP32_BOUND


async def test_a_push_reaches_the_workers_of_both(machines: tuple[Server, Service]):
    server, _ = machines
    async with Trainer(server.url, workers_of_each=NUM_WORKERS) as trainer:
        await trainer.join(take_over=True)
        for version in (1, 2):
            model = server.model(version)
            await trainer.push(model, version)
            answer = await server.sample(prompts=4, n=4, session=trainer.session, min_version=version)
            assert logprob_error(model, answer) <= FP32_BOUND
            assert logprob_error(server.model(0), answer) > 0.5


@pytest.mark.faults
def test_the_others_end_when_the_first_machine_is_gone(machines: tuple[Server, Service]):
    """They would wait for its next step, and keep their GPUs."""
    server, workers = machines
    os.killpg(server.running.process.pid, signal.SIGKILL)
    assert workers.process.wait(60.0) == 1
    assert "error: the first machine, 127.0.0.1, is gone" in workers.log.read_text()


def test_a_machine_with_a_wrong_model_says_so_and_fails(tmp_path: Path):
    command = [BIN / "grpo-rollout", "serve", "/nowhere/model", "--nnodes=2", "--node-rank=1", "--headless"]
    with service(command, tmp_path / "log", port=free_port()) as running:
        assert running.process.wait(120.0) == 2
    assert "error: /nowhere/model is no model" in running.log.read_text()
