"""vLLM's routes of tokens (`--enable-scale-out`, on by default): what they answer with, before, in and after a push."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from grpo_proto.messages.weights import AbortRequest
from tests.rollout.conftest import Server, until_running
from tests.rollout.pushing import manifest_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]

GENERATE = "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "Hello"}]
RENDERED = {
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/v1/completions/render": {"prompt": "Hello"},
    "/v1/messages/render": {"model": "any", "max_tokens": 8, "messages": MESSAGES},
    "/v1/responses/render": {"input": "Hello"},
    "/v1/chat/completions/derender": {},
    "/v1/completions/derender": {},
    "/inference/v1/abort_requests": {"request_ids": []},
}


async def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120.0) as http:
        return await http.post(path, json=body)


def request(*, stream: bool, **sampling: Any) -> dict[str, Any]:
    return {"token_ids": [5, 6, 7], "stream": stream, "sampling_params": {"max_tokens": 8, "logprobs": 0} | sampling}


async def generate(server: Server, *, stream: bool = False, **sampling: Any) -> httpx.Response:
    return await post(server, GENERATE, request(stream=stream, **sampling))


@asynccontextmanager
async def streamed(server: Server) -> AsyncIterator[httpx.Response]:
    """Yield an answer once its head has come."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120.0) as http:
        async with http.stream("POST", GENERATE, json=request(stream=True)) as answer:
            yield answer


def spans(choice: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(span["version"], span["start"], span["end"]) for span in choice["weight_versions"]]


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    """The choices of a stream, in order."""
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


async def test_a_chat_is_rendered_sampled_and_turned_back_into_a_chat_answer(fresh: Server):
    # No end among the tokens: for a parser of tools vLLM leaves it in the text.
    chat = {"messages": MESSAGES, "max_tokens": 8, "min_tokens": 8}
    rendered = (await post(fresh, "/v1/chat/completions/render", chat)).json()
    sampled = await post(fresh, GENERATE, rendered)
    # A server with a parser of tools wants to know what was asked.
    body = {"generate_response": sampled.json(), "chat_request": chat}
    answer = (await post(fresh, "/v1/chat/completions/derender", body)).json()
    (choice,) = answer["choices"]
    token_ids = sampled.json()["choices"][0]["token_ids"]
    text = (await post(fresh, "/detokenize", {"tokens": token_ids})).json()["prompt"]
    assert choice["message"]["content"] == text


async def test_every_token_names_the_version_that_sampled_it_across_a_push(fresh: Server):
    """In an answer at once, and at the end of a stream."""
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        second = fresh.model(32)
        await trainer.push(fresh.model(31), 1)
        long = {"max_tokens": 250, "ignore_eos": True, "n": 64}
        with fresh.slow():
            sampling = [asyncio.create_task(generate(fresh, stream=stream, **long)) for stream in (False, True)]
            await until_running(fresh, 128, waiting=False)
            await trainer.push(second, 2)
        at_once, streamed = await asyncio.gather(*sampling)
    choices = at_once.json()["choices"]
    ended = [choice for choice in chunks(streamed) if choice["finish_reason"] is not None]
    assert len(choices) == len(ended) == 64
    for choice in (*choices, *ended):
        (first, start, switch), (second, again, end) = spans(choice)
        assert (first, start, second, again, end) == ("1", 0, "2", switch, 250)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_comes_while_weights_load_is_held_for_them(fresh: Server, stream: bool):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 1)
        manifest = manifest_of(fresh.model(33))
        await trainer.begin(2, manifest)
        waiting = asyncio.create_task(generate(fresh, stream=stream))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await trainer.commit(2, await trainer.send(fresh.model(33), manifest))
        answer = await waiting
    ends = chunks(answer)[-1] if stream else answer.json()["choices"][0]
    assert [version for version, *_ in spans(ends)] == ["2"]


async def test_after_a_failed_push_what_was_held_is_aborted_at_its_deadline_and_all_are_refused(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 1)
        await trainer.begin(2, manifest_of(fresh.model(2)), deadline_s=2.0)
        async with streamed(fresh) as waiting:  # with the answer's head it is held
            await trainer.clients[0].abort(AbortRequest(session=trainer.session, reason="the loss is NaN"))
            await waiting.aread()
        (aborted,) = chunks(waiting)
        assert (aborted["finish_reason"], aborted["token_ids"], aborted["weight_versions"]) == ("abort", [], [])
        assert error(await generate(fresh)) == (503, "weights_stale")
        for path, body in RENDERED.items():
            assert error(await post(fresh, path, body)) == (503, "weights_stale"), path
    await fresh.heal()
    assert (await generate(fresh)).status_code == 200


@pytest.mark.parametrize(
    "sampling",
    [
        {"logprobs": 102},
        {"prompt_logprobs": 102},
        {"allowed_token_ids": [10**9]},
        {"stop_token_ids": [2**65]},
        {"seed": 2**70},
        {"max_tokens": 0},
    ],
)
async def test_parameters_that_cannot_be_sampled_with_are_refused_and_the_engine_lives(
    fresh: Server, sampling: dict[str, Any]
):
    """The vocabulary has 101 tokens, and vLLM itself would take 102 logprobs where --max-logprobs does."""
    assert (await generate(fresh, **sampling)).status_code == 400
    assert (await generate(fresh)).status_code == 200
