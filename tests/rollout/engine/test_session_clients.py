"""Stock clients in sessions over a real engine: a policy that calls a tool, pushed like any weights."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import torch
from transformers import Qwen2ForCausalLM

from tests.rollout.conftest import Server
from tests.rollout.sessions.opened import Opened, opened
from tests.tiny_model import make_model, make_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]

TOKENIZER = make_tokenizer()
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
QUESTION = {"role": "user", "content": "37*52?"}
START = "<|im_start|>user\n37*52?<|im_end|>\n<|im_start|>assistant\n"
# The model ends an answer with another token than its template does; the template's follows as context.
CALL = 'So: <tool_call>{"name": "calc", "arguments": {"expr": "37*52"}}</tool_call><eos>'
RESULT = "<|im_end|>\n<|im_start|>tool\n1924<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "It is 1924.<eos>"
GREEDY = {"temperature": 0.0, "max_tokens": 100}


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


@pytest.fixture(scope="module")
def player() -> Qwen2ForCausalLM:
    """A policy that has learned one episode by heart."""
    model = make_model(tied=True).train()
    ids = torch.tensor([ids_of(START + CALL + RESULT + ANSWER)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(300):
        loss = model(ids, labels=ids).loss
        if loss.item() < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.to(torch.bfloat16).eval()


@pytest.fixture
async def session(server: Server, player: Qwen2ForCausalLM) -> AsyncIterator[Opened]:
    async with server.trainer(trainer_id="healer") as trainer:
        await trainer.join(take_over=True)
        await trainer.push(player, 1)
    async with opened(server, sampling=GREEDY) as session:
        yield session


def client_of(session: Opened) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(
        base_url=session.answer["openai_base_url"], api_key=session.answer["api_key"], http_client=http
    )


def result_of(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "1924"}


async def assert_one_exact_segment(session: Opened) -> None:
    """What is recorded is the episode by hand: every sampled token trains, and nothing is tokenised again."""
    trajectory = await session.trajectory()
    (segment,) = trajectory["segments"]
    assert segment["token_ids"] == ids_of(START + CALL + RESULT + ANSWER)
    assert [turn["text"] + "<eos>" for turn in segment["turns"]] == [CALL, ANSWER]
    assert trajectory["stats"]["masked"] == {}
    assert all(turn["versions"][0][0] == 1 for turn in segment["turns"])


async def test_an_openai_client_calls_a_tool_and_goes_on(session: Opened):
    async with client_of(session) as client:
        first = await client.chat.completions.create(model="mine", messages=[QUESTION], tools=TOOLS)
        said = first.choices[0].message
        (call,) = said.tool_calls or []
        assert (call.function.name, json.loads(call.function.arguments)) == ("calc", {"expr": "37*52"})
        assert (first.choices[0].finish_reason, first.model) == ("tool_calls", "mine")
        messages = [QUESTION, said, result_of(call.id)]
        second = await client.chat.completions.create(model="mine", messages=messages, tools=TOOLS)
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It is 1924.", "stop")
        assert [model.id for model in (await client.models.list()).data]
    await assert_one_exact_segment(session)


async def test_an_openai_client_streams_a_call_and_the_answer(session: Opened):
    async with client_of(session) as client:
        async with client.chat.completions.stream(model="mine", messages=[QUESTION], tools=TOOLS) as stream:
            said = (await stream.get_final_completion()).choices[0].message
        (call,) = said.tool_calls or []
        sent = {"role": "assistant", "content": said.content, "tool_calls": [
            {"id": call.id, "type": "function",
             "function": {"name": call.function.name, "arguments": call.function.arguments}}]}  # fmt: skip
        options = {"include_usage": True}
        text, usage = "", None
        async for chunk in await client.chat.completions.create(
            model="mine",
            messages=[QUESTION, sent, result_of(call.id)],
            tools=TOOLS,
            stream=True,
            stream_options=options,
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
    assert (text, usage.completion_tokens) == ("It is 1924.", len(ids_of(ANSWER)))
    await assert_one_exact_segment(session)


async def test_an_ended_session_is_an_error_that_the_client_does_not_retry(session: Opened):
    await session.control("close", {"status": "completed"})
    async with client_of(session) as client:
        with pytest.raises(openai.APIStatusError, match="has ended: completed") as caught:
            await client.chat.completions.create(model="mine", messages=[QUESTION])
    assert caught.value.status_code == 410
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
