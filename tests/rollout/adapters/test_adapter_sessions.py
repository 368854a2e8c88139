"""Sessions on a server of adapters: each turn samples from the newest version, and its tokens have that version."""

import asyncio

import pytest
import torch

from tests.rollout.adapters.adapter import Adapter, AdapterTrainer
from tests.rollout.conftest import Server, until_running
from tests.rollout.sessions.opened import opened

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]
FP32_BOUND = 1e-5


async def test_each_turn_samples_from_the_newest_adapter(server: Server, trainer: AdapterTrainer):
    adapters = [Adapter(21), Adapter(22)]
    async with opened(server, weights_session=trainer.session, min_version=1, sampling={"max_tokens": 20}) as session:
        waiting = asyncio.create_task(session.generate(messages=[{"role": "user", "content": "Hello"}]))
        await trainer.push_adapter(adapters[0], 1)
        first = await waiting
        await trainer.push_adapter(adapters[1], 2)
        await session.generate(parent=first["turn"], messages=[{"role": "user", "content": "Again"}])
        (segment,) = (await session.trajectory())["segments"]
    assert [turn["versions"] for turn in segment["turns"]] == [[[1, 20]], [[2, 20]]]
    ids, before = torch.tensor([segment["token_ids"]]), 0
    for turn, adapter in zip(segment["turns"], adapters, strict=True):
        start, end = turn["start"], turn["end"]
        with torch.no_grad():
            logprobs = adapter.model(ids).logits[0].log_softmax(-1)
        ours = logprobs[start - 1 : end - 1].gather(1, ids[0, start:end, None])[:, 0]
        theirs = torch.tensor(segment["logprobs"][before : before + end - start])
        assert float((ours - theirs).abs().max()) <= FP32_BOUND
        before += end - start


async def test_a_turn_under_way_ends_on_its_adapter(server: Server, trainer: AdapterTrainer):
    await trainer.push_adapter(Adapter(23), 1)
    async with opened(server, weights_session=trainer.session, sampling={"max_tokens": 200}) as session:
        second = Adapter(24)
        with server.slow():
            # With the seed of `opened` it is sampled to its limit.
            running = asyncio.create_task(session.generate(token_ids=[5, 8]))
            await until_running(server)
            await trainer.push_adapter(second, 2)
            assert not running.done()
        turn = await running
    assert turn["versions"] == [[1, 200]]
