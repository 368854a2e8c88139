"""A push with `kv_cache` keep: what runs goes on with what it has, and nothing else ever gets any of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import torch
from transformers import Qwen2ForCausalLM

from grpo_proto.messages.rollout import Completion, RolloutResponse
from tests.rollout.conftest import Server, logprob_error, long_request, rollout_request, until_running
from tests.rollout.pushing import Trainer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]
BF16_BOUND = 0.02
LETTER = 7
"""The only token that the sequences of `letters` may sample, so that their continuation is known before it is there."""


async def num_preemptions(server: Server) -> float:
    """Sequences whose KV vLLM has given up, to compute it again, since the server was started."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_preemptions_total"))


@torch.no_grad()
def logprobs_on_kept_keys(
    old: Qwen2ForCausalLM, new: Qwen2ForCausalLM, prompt: list[int], completion: Completion
) -> torch.Tensor:
    """What `new` computes for its tokens of `completion`, on the keys and values that `old` has computed.

    The key of the last token before the push is computed with the next token, by `new`.
    """
    num_old = len(prompt) + completion.versions[0][1] - 1
    ids = torch.tensor([prompt + completion.token_ids])
    cache = old(ids[:, :num_old], use_cache=True).past_key_values
    logprobs = new(ids[:, num_old:-1], past_key_values=cache).logits[0].float().log_softmax(-1)
    return logprobs.gather(1, ids[0, num_old + 1 :, None])[:, 0]


@torch.no_grad()
def exact_logprobs(model: Qwen2ForCausalLM, prompt: list[int], completion: Completion) -> torch.Tensor:
    ids = torch.tensor([prompt + completion.token_ids])
    logprobs = model(ids[:, :-1]).logits[0].float().log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]


async def pushed_while_sampling(server: Server, trainer: Trainer) -> tuple[RolloutResponse, float]:
    """Sample long sequences over a push of version 2 that asks to keep; also the number of preemptions meanwhile."""
    second = server.model(32)
    before = await num_preemptions(server)
    async with server.client() as client:
        with server.slow():
            sampling = asyncio.create_task(client.rollouts(long_request("across", prompts=6)))
            await until_running(server)
            await trainer.push(second, 2, kv_cache="keep")
        answer = await sampling
    return answer, await num_preemptions(server) - before


def completions_of(answer: RolloutResponse) -> list[tuple[list[int], Completion]]:
    return [(group.prompt_token_ids, one) for group in answer.groups for one in group.completions]


async def test_running_sequences_go_on_with_the_keys_and_values_of_the_old_weights(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(31), 1)
        answer, preempted = await pushed_while_sampling(fresh, trainer)
    assert preempted == 0
    old, new = fresh.model(31), fresh.model(32)
    mixed = [(prompt, one) for prompt, one in completions_of(answer) if [v for v, _ in one.versions] == [1, 2]]
    alone = [(prompt, one) for prompt, one in completions_of(answer) if [v for v, _ in one.versions] == [2]]
    assert mixed
    assert alone
    differences = []
    for prompt, one in mixed[::16]:
        start = one.versions[0][1]
        served = torch.tensor(one.logprobs)
        assert float((served[:start] - exact_logprobs(old, prompt, one)[:start]).abs().max()) <= 0.05
        assert float((served[start:] - logprobs_on_kept_keys(old, new, prompt, one)).abs().max()) <= 0.05
        differences.append(float((served[start:] - exact_logprobs(new, prompt, one)[start:]).abs().max()))
    assert max(differences) > 0.5
    for prompt, one in alone[::16]:
        assert float((torch.tensor(one.logprobs) - exact_logprobs(new, prompt, one)).abs().max()) <= 0.05


async def test_the_first_push_of_a_session_recomputes_all_the_same(fresh: Server):
    """A trainer that was started again: the sequences are of weights that it knows nothing of."""
    async with fresh.trainer() as ended:
        await ended.join(take_over=True)
        await ended.push(fresh.model(31), 1)
    async with fresh.trainer() as trainer:
        await trainer.join()
        answer, preempted = await pushed_while_sampling(fresh, trainer)
    assert preempted > 0
    new = fresh.model(32)
    mixed = [(prompt, one) for prompt, one in completions_of(answer) if [v for v, _ in one.versions] == [1, 2]]
    for prompt, one in mixed[::16]:
        start = one.versions[0][1]
        served = torch.tensor(one.logprobs)[start:]
        assert float((served - exact_logprobs(new, prompt, one)[start:]).abs().max()) <= 0.05


@asynccontextmanager
async def letters(http: httpx.AsyncClient, prompt: list[int], num_tokens: int) -> AsyncIterator[AsyncIterator[str]]:
    """Stream a sequence of one letter from vLLM's own route; yields its text as it comes, a character for a token."""
    body = {"prompt": prompt, "max_tokens": num_tokens, "allowed_token_ids": [LETTER], "ignore_eos": True}
    async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200

        async def texts() -> AsyncIterator[str]:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]

        yield texts()


async def completed(http: httpx.AsyncClient, prompt: list[int]) -> dict[str, Any]:
    """The answer of vLLM's own route, sampled with a seed."""
    body = {"prompt": prompt, "max_tokens": 16, "seed": 3, "logprobs": 0, "return_token_ids": True}
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200
    choice: dict[str, Any] = response.json()["choices"][0]
    return {"token_ids": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"]}


async def test_no_request_finds_what_older_weights_had_a_part_in(fresh: Server):
    """Neither what was cached before the push, nor what a kept sequence caches after it.

    The sequence of letters crosses the push, so the blocks that it fills later hold the keys of neither policy. They
    follow tokens whose blocks other requests fill again with the new weights: a chain of hashes that leads to them.
    """
    ours, theirs, prompt = (
        [5 + (step * number) % 90 for number in range(n)] for step, n in ((11, 100), (17, 100), (23, 40))
    )
    new = fresh.model(32)
    async with (
        fresh.trainer() as trainer,
        fresh.client() as client,
        httpx.AsyncClient(base_url=fresh.url, trust_env=False, timeout=120.0) as http,
    ):
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(31), 1)
        request = rollout_request(prompts=[ours], n=2, request_id="ours")
        old_ours, old_theirs = await client.rollouts(request), await completed(http, theirs)

        with fresh.slow():
            async with letters(http, prompt, 216) as texts:
                num_before = 0
                while num_before < 20:
                    num_before += len(await anext(texts))
                await trainer.push(new, 2, kv_cache="keep")
                follows = await fresh.sample(prompts=[prompt + [LETTER] * 150], request_id="follows")
                num_after = sum([len(text) async for text in texts])
        assert num_after >= 64  # whole blocks, and not behind those that `follows` fills

        new_ours, new_theirs = await client.rollouts(request), await completed(http, theirs)
        follows_far = await fresh.sample(prompts=[prompt + [LETTER] * 200], request_id="follows-far")
        assert logprob_error(new, follows) <= BF16_BOUND
        assert logprob_error(new, follows_far) <= BF16_BOUND

        await trainer.push(new, 3, kv_cache="recompute")
        exact_ours, exact_theirs = await client.rollouts(request), await completed(http, theirs)
    assert old_theirs != new_theirs == exact_theirs
    tokens_and_logprobs = [
        [(one.token_ids, one.logprobs) for _, one in completions_of(answer)]
        for answer in (old_ours, new_ours, exact_ours)
    ]
    assert tokens_and_logprobs[0] != tokens_and_logprobs[1] == tokens_and_logprobs[2]
    assert logprob_error(new, new_ours) <= BF16_BOUND
