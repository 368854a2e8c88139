"""The server that all tests of adapters share: float32, untied, with room for two adapters, so that a test can fill it.

It also serves two adapters from folders, `foreign-0` and `foreign-1`. Requests for them push versions out of its cache.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
import torch

from tests.rollout.adapters.adapter import Adapter, AdapterTrainer, make_base
from tests.rollout.conftest import Server, started

FLAGS = ("--dtype=float32", "--enforce-eager", "--enable-lora", "--max-loras=2", "--max-cpu-loras=2")


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("adapters")
    names = ("foreign-0", "foreign-1")
    for seed, name in enumerate(names):
        Adapter(90 + seed).model.save_pretrained(folder / name)
    foreign = ("--lora-modules", *(f"{name}={folder / name}" for name in names))
    with started(folder, *FLAGS, *foreign, tied=False, dtype=torch.float32, weights=make_base()) as server:
        server.running.wait_until_live()
        yield server


@pytest.fixture
async def trainer(server: Server) -> AsyncIterator[AdapterTrainer]:
    """A trainer that has joined, whatever other tests have left."""
    async with AdapterTrainer(server.url) as trainer:
        await trainer.join(take_over=True)
        yield trainer
