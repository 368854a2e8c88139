"""Stock clients in sessions over a real engine: a policy that calls a tool, pushed like any weights."""

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from tests.idle_connection import assert_kept
from tests.rollout.conftest import Server
from tests.rollout.sessions.opened import Opened, opened
from tests.tiny_model import make_model, make_tokenizer

if TYPE_CHECKING:  # the clients take seconds to import, in every process that collects the tests
    import anthropic
    import openai

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


def client_of(session: Opened) -> "openai.AsyncOpenAI":
    import openai

    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(
        base_url=session.answer["openai_base_url"], api_key=session.answer["api_key"], http_client=http
    )


def anthropic_client_of(session: Opened) -> "anthropic.AsyncAnthropic":
    import anthropic

    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(
        base_url=session.answer["anthropic_base_url"], api_key=session.answer["api_key"], http_client=http
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


RESPONSES_TOOLS: Any = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]
ANTHROPIC_TOOLS: Any = [{"name": "calc", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("streams", [False, True])
async def test_an_openai_client_of_responses_calls_a_tool_and_goes_on(session: Opened, streams: bool):
    async with client_of(session) as client:

        async def answer(**body: Any) -> Any:
            body = {"model": "mine", "tools": RESPONSES_TOOLS, **body}
            if not streams:
                return await client.responses.create(**body)
            async with client.responses.stream(**body) as stream:
                return await stream.get_final_response()

        first = await answer(input=[QUESTION])
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, json.loads(call.arguments)) == ("calc", {"expr": "37*52"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "1924"}
        said = [item.model_dump(exclude_none=True) for item in first.output]
        second = await answer(input=[QUESTION, *said, result])
        assert (second.output_text, second.status) == ("It is 1924.", "completed")
    await assert_one_exact_segment(session)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_anthropic_client_calls_a_tool_and_goes_on(session: Opened, streams: bool):
    async with anthropic_client_of(session) as client:

        async def answer(*messages: Any) -> "anthropic.types.Message":
            body: Any = {"model": "mine", "max_tokens": 100, "tools": ANTHROPIC_TOOLS, "messages": messages}
            if not streams:
                return await client.messages.create(**body)
            async with client.messages.stream(**body) as stream:
                return await stream.get_final_message()

        first = await answer(QUESTION)
        use = first.content[-1]
        assert use.type == "tool_use"
        assert (use.name, use.input, first.stop_reason) == ("calc", {"expr": "37*52"}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "1924"}
        history = (QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]})
        counted = await client.messages.count_tokens(model="mine", messages=history, tools=ANTHROPIC_TOOLS)
        second = await answer(*history)
        (text,) = second.content
        assert text.type == "text"
        assert (text.text, second.stop_reason) == ("It is 1924.", "end_turn")
        assert counted.input_tokens == second.usage.input_tokens
        assert [model.id for model in (await client.models.list()).data]
    await assert_one_exact_segment(session)


async def test_errors_have_the_form_that_an_anthropic_client_reads(session: Opened):
    import anthropic

    async with anthropic_client_of(session) as client:
        ask = {"model": "mine", "max_tokens": 5}
        long = {"role": "user", "content": "x" * 300}
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(messages=[long], **ask)
        await session.control("close", {"status": "completed"})
        with pytest.raises(anthropic.APIStatusError, match="has ended: completed") as caught:
            await client.messages.create(messages=[QUESTION], **ask)
        assert caught.value.status_code == 410
        foreign = client.with_options(api_key="api-of-somebody-else")
        with pytest.raises(anthropic.AuthenticationError):
            await foreign.messages.create(messages=[QUESTION], **ask)


async def test_an_ended_session_is_an_error_that_the_client_does_not_retry(session: Opened):
    import openai

    await session.control("close", {"status": "completed"})
    async with client_of(session) as client:
        with pytest.raises(openai.APIStatusError, match="has ended: completed") as caught:
            await client.chat.completions.create(model="mine", messages=[QUESTION])
    assert caught.value.status_code == 410
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_client_that_thinks_between_two_turns_finds_its_connection(server: Server):
    assert_kept(server.url)


async def test_a_text_that_was_cut_inside_an_emoji_is_answered(session: Opened):
    """As programs send it that cut the output of a tool by UTF-16 units."""
    bodies = {
        "chat/completions": b'{"model": "mine", "messages": [{"role": "user", "content": "37*52? \\ud83d"}]}',
        "responses": b'{"model": "mine", "input": "37*52? \\ud83d"}',
        "messages": b'{"model": "mine", "max_tokens": 9, "messages": [{"role": "user", "content": "37*52? \\ud83d"}]}',
    }
    headers = {"Authorization": f"Bearer {session.answer['api_key']}", "Content-Type": "application/json"}
    for path, body in bodies.items():
        url = f"{session.answer['openai_base_url']}/{path}"
        answer = await session.http.post(url, content=body, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
