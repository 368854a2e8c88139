"""What a worker remembers of many schemas and params, which take forty times the memory of their text."""

import json
from pathlib import Path

import pytest
from tests.reward.machinery import fork_server

from grpo_proto import RewardSpec
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.rewards.json_schema import json_schema

pytestmark = pytest.mark.processes


def large(number: int) -> dict[str, object]:
    """JSON nearly as long as any that is remembered, and of all of that length among the largest in memory."""
    return {"number": number, "lists": [[[[[[]]]]]] * 5200}


# Where all were kept, 28 of them would take the 64 MiB that the tests allow.


def resident_mib(pid: int | str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_many_large_schemas_of_a_column_take_little_memory():
    assert 60_000 < len(json.dumps(large(0))) < 64 * 1024
    before = resident_mib("self")
    for number in range(36):
        assert json_schema("1", json_schema=large(number)).score == 1.0
    assert resident_mib("self") - before < 64


@pytest.mark.asyncio
async def test_many_large_params_take_little_memory():
    executor = ProcessExecutor(workers=1)
    await executor.start()

    async def score(number: int) -> None:
        chunk = Chunk([RewardSpec(name="json_schema", params={"schema": large(number)})], [sample], None, 30.0)
        await executor.score(chunk)
        assert chunk.scores[0].score == 1.0

    sample = {"completion": "1", "columns": {}}
    await score(-1)
    forkserver = fork_server(executor)
    (worker,) = children_of(forkserver)
    before = resident_mib(worker)
    for number in range(36):
        await score(number)
    assert resident_mib(worker) - before < 64
    await executor.stop()
