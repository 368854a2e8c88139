"""A compiled server beside the shared eager one: two servers in one group, and how a server ends.

Both are tied. The tests run in order, and the last one stops the compiled server.
"""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
import torch

from tests.processes import gone_within
from tests.rollout.conftest import Server, logprob_error, long_request, started, until_running
from tests.rollout.pushing import Trainer, manifest_of
from tests.rollout.sessions.opened import opened
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]
BF16_BOUND = 0.02


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("tied-compiled"), tied=True, dtype=torch.bfloat16) as server:
        server.running.wait_until_live()
        yield server


@pytest.fixture
def both(server: Server, compiled: Server) -> tuple[Server, Server]:
    return server, compiled


async def readyz(server: Server, **query: object) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        return (await http.get(f"{server.url}/readyz", params=query)).status_code


async def test_a_server_is_ready_without_a_trainer_when_the_time_for_one_is_over(compiled: Server):
    assert await readyz(compiled) == 200
    assert await readyz(compiled, weights="required") == 503
    assert await readyz(compiled, weights="required", wait_s=0) == 200
    assert await readyz(compiled, weights="best") == await readyz(compiled, wait_s="nan") == 422


async def test_a_push_through_one_group_reaches_both_servers(both: tuple[Server, Server]):
    async with Trainer(*(server.url for server in both)) as trainer:
        await trainer.join(take_over=True)
        for version in (1, 2):
            model = both[0].model(version)
            await trainer.push(model, version)
            for server in both:
                answer = await server.sample(prompts=4, n=4, session=trainer.session, min_version=version)
                assert logprob_error(model, answer) <= BF16_BOUND
                assert logprob_error(server.model(0), answer) > 0.5
                assert await readyz(server, weights="required", wait_s=3600) == 200


async def test_a_push_that_one_server_does_not_survive_leaves_the_other_to_the_next(both: tuple[Server, Server]):
    """The survivor is stale at once, and takes the same version again in a new group without the dead one."""
    eager, compiled = both
    async with Trainer(eager.url, compiled.url) as trainer:
        await trainer.join(take_over=True)
        await trainer.push(eager.model(3), 1)
    async with Trainer(eager.url) as survivor:
        await survivor.join()
        await survivor.push(eager.model(4), 1)
    assert logprob_error(eager.model(4), await eager.sample()) <= BF16_BOUND
    assert logprob_error(eager.model(3), await compiled.sample()) <= BF16_BOUND


async def test_the_output_head_follows_the_embedding(compiled: Server):
    async with compiled.trainer() as trainer:
        await trainer.join()
        for version in (1, 2):
            await trainer.push(compiled.model(version), version)
            answer = await compiled.sample(prompts=4, n=4)
            assert logprob_error(compiled.model(version), answer) <= BF16_BOUND


async def test_the_probes_answer_while_a_push_hangs(compiled: Server):
    async with compiled.trainer() as trainer, httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        await trainer.join()
        # The engine's loop is blocked in a receive from now on; a probe that waited for it would find it over.
        await trainer.begin(1, manifest_of(compiled.model(1)), bucket_timeout_s=60.0)
        for _ in range(20):
            assert (await http.get(f"{compiled.url}/livez")).status_code == 200
            await asyncio.sleep(0.05)
        assert (await trainer.state()).state == "loading"


async def test_sigterm_ends_it_cleanly_in_the_middle_of_sampling(compiled: Server):
    await compiled.heal()
    processes = compiled.running.children()
    async with compiled.client() as client, opened(compiled, sampling={"max_tokens": 200}) as session:
        sampling = asyncio.create_task(client.rollouts(long_request("last")))
        await until_running(compiled)
        # A turn of its own could end before anybody looks; behind so many sequences it waits.
        waiting = asyncio.create_task(session.chat({"role": "user", "content": "Hello"}))
        await session.until(lambda stats: stats["turns"] == 1)
        assert await asyncio.to_thread(compiled.running.stop, 30.0) == 0
        answer, of_session = await sampling, await waiting
    ends = {completion.finish_reason for group in answer.groups for completion in group.completions}
    assert "abort" in ends
    assert (of_session.status_code, of_session.json()["error"]["code"]) == (503, "stopping")
    assert gone_within(processes, 5.0)
