"""The server that all tests of adapters share: float32, untied, with two slots, so that a test can fill them."""

from collections.abc import AsyncIterator, Iterator

import pytest
import torch

from tests.rollout.adapters.adapter import AdapterTrainer
from tests.rollout.conftest import Server, started

FLAGS = ("--dtype", "float32", "--enforce-eager", "--enable-lora", "--max-loras", "2")


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("adapters"), *FLAGS, tied=False, dtype=torch.float32) as server:
        server.running.wait_until_live()
        yield server


@pytest.fixture
async def trainer(server: Server) -> AsyncIterator[AdapterTrainer]:
    """A trainer that has joined, whatever other tests have left."""
    async with AdapterTrainer(server.url) as trainer:
        await trainer.join(take_over=True)
        yield trainer
