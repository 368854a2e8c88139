"""A push of all weights to a server of adapters.

It overwrites the base, so that the server takes no adapters any more: this file stands last of those that share it.
"""

import asyncio

import pytest

from tests.rollout.adapters.adapter import Adapter, AdapterTrainer
from tests.rollout.adapters.asking import complete, finish_reasons, models, num_adapters, refused, versions_in
from tests.rollout.conftest import Server, logprob_error, long_request, until_running
from tests.rollout.pushing import new_session

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


async def test_a_new_session_may_push_all_weights_and_no_adapter_after_that(server: Server, trainer: AdapterTrainer):
    await trainer.push_adapter(Adapter(50), 1)
    async with AdapterTrainer(server.url, session=new_session()) as full, server.client() as client:
        with server.slow():
            running = asyncio.create_task(client.rollouts(long_request("old", prompts=2)))
            await until_running(server)
            await full.join(take_over=True)
            await full.push(server.model(51), 1)
        assert "abort" in finish_reasons(await running)
        answer = await server.sample(prompts=4, n=4, session=full.session)
        assert versions_in(answer) == {1}
        assert logprob_error(server.model(51), answer) <= 1e-4
        assert not {name for name in await models(server) if name.startswith("policy")}
        assert (await complete(server, "policy")).status_code == 404
        assert await num_adapters(server) == 0
        with refused(409, "base_overwritten"):
            await full.begin_adapter(Adapter(52), 2)
