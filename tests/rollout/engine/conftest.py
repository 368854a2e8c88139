"""The server that most tests of sampling and pushes share: tied, eager, bfloat16."""

from collections.abc import Iterator

import pytest
import torch

from tests.rollout.conftest import Server, started

MAX_SCORED_TOKENS = 4096


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    bound = str(MAX_SCORED_TOKENS)
    # Blocks of which a sequence of the tests fills several: the prefix cache takes full ones only.
    bounds = ("--max-scored-tokens", bound, "--max-scored-tokens-in-flight", bound)
    tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    flags = ("--enforce-eager", "--block-size", "32", *bounds, *tools)
    with started(tmp_path_factory.mktemp("tied-eager"), *flags, tied=True, dtype=torch.bfloat16) as server:
        server.running.wait_until_live()
        yield server


@pytest.fixture
async def fresh(server: Server) -> Server:
    """The shared server, serving weights of seed 1 in nobody's session."""
    await server.heal()
    return server
