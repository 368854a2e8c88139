"""Programs that edit their history, branch a hundred times or ask many things at once: each token is accounted for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from grpo_proto.server.refusal import Refusal
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import Served, serve

pytestmark = IN_PROCESS

QUESTION = {"role": "user", "content": "q"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chatml")


@pytest.fixture
async def served(folder: Path) -> Served:
    return serve("chatml", folder)


def will_say(served: Served, text: str) -> None:
    served.next(served.tokenizer.encode(f"<think>\n\n</think>\n\n{text}<|im_end|>", add_special_tokens=False))


async def said(served: Served, session: Any, text: str, *messages: Any, **body: Any) -> dict[str, Any]:
    """The answer to these messages, as the program will send it back."""
    will_say(served, text)
    message: dict[str, Any] = (await served.chat(session, messages=list(messages), **body))["choices"][0]["message"]
    return message


def reasons(session: Any) -> list[str | None]:
    return [segment.fork_reason for segment in session.trajectory().segments]


async def test_an_edited_answer_forks_and_the_edit_is_context(served: Served):
    session = served.open()
    answer = await said(served, session, "one", QUESTION)
    await said(served, session, "two", QUESTION, answer | {"content": "other"}, QUESTION)
    first, second = session.trajectory().segments
    assert (first.fork_reason, second.fork_reason) == (None, "edited")
    assert [message["content"].strip() for message in second.messages] == ["q", "other", "q", "two"]
    assert len(second.turns) == 1
    assert session.trajectory().stats.masked == {}


async def test_a_hundred_branches_at_once_share_their_prompt_and_all_train(served: Served):
    session = served.open()
    answer = await said(served, session, "one", QUESTION)
    more = (QUESTION, answer, {"role": "user", "content": "and?"})
    await asyncio.gather(*(said(served, session, f"branch {number}", *more) for number in range(100)))
    found = session.trajectory()
    assert reasons(session) == [None, *["branch"] * 99]
    said_last = {segment.messages[-1]["content"].strip() for segment in found.segments}
    assert said_last == {f"branch {number}" for number in range(100)}
    assert (found.stats.turns, found.stats.masked) == (101, {})
    assert len({tuple(prompt) for prompt in served.script.prompts[1:]}) == 1


async def test_more_branches_than_allowed_end_the_session(served: Served):
    session = served.open(limits={"max_segments": 3})
    for text in "abc":
        await said(served, session, text, QUESTION)
    with pytest.raises(Refusal, match="max_segments 3 is reached"):
        await said(served, session, "d", QUESTION)
    assert (session.state().status, session.trajectory().stats.turns) == ("truncated", 3)


async def test_a_result_that_comes_twice_or_for_nobody_is_refused_and_the_session_goes_on(served: Served):
    session = served.open()
    tools = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
    call = '<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>'
    sent = await said(served, session, call, QUESTION, tools=tools)
    result = {"role": "tool", "tool_call_id": sent["tool_calls"][0]["id"], "content": "r"}
    for results, says in (([result, result], "a second result"), ([result | {"tool_call_id": "x"}], "nobody made")):
        with pytest.raises(Refusal, match=says):
            await served.chat(session, messages=[QUESTION, sent, *results], tools=tools)
    await said(served, session, "done", QUESTION, sent, result, tools=tools)
    assert reasons(session) == [None]
