"""How sessions end: time that counts and time that does not, and a drain, over an engine client that plays a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_proto.messages.sessions import CloseSession
from grpo_proto.server.refusal import Refusal
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import Served, serve

pytestmark = IN_PROCESS

QUESTION = [{"role": "user", "content": "q"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chatml")


@pytest.fixture
async def served(folder: Path) -> Served:
    return serve("chatml", folder)


async def begun(served: Served, session: Any) -> "asyncio.Task[Any]":
    """A turn that samples until it is aborted, and whoever waits for it."""
    served.script.holds = True
    served.next([5, 6, 7, 8], "length")
    waiting = asyncio.create_task(served.chat(session, messages=QUESTION))
    await served.script.holding.wait()
    return waiting


async def test_time_in_which_a_session_waits_for_its_weights_does_not_count(served: Served):
    pushes: Any = served.parts.sessions.pushes
    pushes.weights = replace(pushes.weights, session=7, committed_session=7, state="current", version=1)
    limits = {"deadline_s": 0.5, "idle_s": 0.5}
    waits = served.open(weights_session=7, min_version=2, limits=limits)
    served_now = served.open(weights_session=7, min_version=1, limits=limits)
    await asyncio.sleep(1.0)
    assert (waits.end, served_now.state().status) == (None, "truncated")
    pushes.weights = replace(pushes.weights, state="stale")
    await asyncio.sleep(1.0)
    assert waits.end is None
    pushes.weights = replace(pushes.weights, state="current", version=2)
    await asyncio.sleep(1.0)
    assert (waits.state().status, waits.state().cause) == ("truncated", "policy")


async def test_a_deadline_in_the_middle_of_a_turn_keeps_what_was_sampled(served: Served):
    session = served.open(limits={"deadline_s": 0.5})
    waiting = await begun(served, session)
    with pytest.raises(Refusal, match="deadline_s") as refused:
        await waiting
    assert refused.value.status == 400
    found = session.trajectory()
    assert (found.status, found.cause, found.stats.sampled) == ("truncated", "policy", 2)
    assert found.stats.masked == {"undelivered": 2}


async def test_a_drain_ends_sessions_as_infrastructure_and_answers_503(served: Served):
    session, idle = served.open(), served.open()
    waiting = await begun(served, session)
    await asyncio.to_thread(served.script.shutdown)
    with pytest.raises(Refusal, match="the server stops") as refused:
        await waiting
    served.script.errored = True  # as vLLM's client says from now on
    assert (refused.value.status, refused.value.headers["x-should-retry"]) == (503, "false")
    for ended in (session, idle):
        state = ended.state()
        assert (state.status, state.cause) == ("failed", "infrastructure")
    with pytest.raises(Refusal, match="the server stops"):
        await served.chat(idle, messages=QUESTION)
    with pytest.raises(Refusal, match="stopping") as opening:
        served.open()
    assert opening.value.status == 503


async def test_an_answer_that_is_recorded_outlives_the_engine(served: Served):
    """A turn that is asked for then is told that the engine has died, which vLLM's own objects answer with 500."""
    from grpo_rollout.engine import EngineDiedError

    session = served.open()
    served.next([5, 6, 7, 8])
    first = await served.chat(session, messages=QUESTION)
    served.script.errored = True
    retried = await served.chat(session, messages=QUESTION, retry=True)
    assert retried["choices"] == first["choices"]
    asks: list[tuple[str, dict[str, Any]]] = [
        ("chat", {"messages": QUESTION}),
        ("chat", {"messages": QUESTION, "stream": True}),
        ("responses", {"input": "q"}),
        ("messages", {"messages": QUESTION, "max_tokens": 5}),
    ]
    for api, body in asks:
        with pytest.raises(EngineDiedError) as died:
            await getattr(served.parts, api).answer(session, {"model": "m", **body}, retry=False)
        assert died.value.refusal.detail.type == "engine_died"


async def test_a_turn_whose_session_ends_while_its_images_are_awaited_is_not_sampled(served: Served):
    session, turns = served.open(), served.parts.turns
    awaited, ready = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def beside(token_ids: list[int], *_: Any) -> AsyncIterator[list[int]]:
        awaited.set()
        await ready.wait()
        yield token_ids

    turns.prompts = replace(turns.prompts, pictures=SimpleNamespace(beside=beside, takes_any=False, check_count=id))
    waiting = asyncio.create_task(served.chat(session, messages=QUESTION))
    await awaited.wait()
    session.close(CloseSession(status="completed"))
    ready.set()
    with pytest.raises(Refusal, match="has ended"):
        await waiting
    assert not served.script.prompts


async def test_a_retry_joins_a_turn_that_began_while_its_own_prompt_was_rendered(served: Served):
    session = served.open()
    served.next([5, 6, 7, 8])
    answers = await asyncio.gather(*(served.chat(session, messages=QUESTION, retry=retry) for retry in (False, True)))
    assert answers[0]["choices"] == answers[1]["choices"]
    assert session.forest.num_turns == 1


async def test_a_turn_without_numbers_is_told_and_spoils_nothing_that_is_recorded(served: Served):
    """As after a push of NaN: JSON has no number for its logprobs."""
    session = served.open()
    served.next([5, 6, 7, 8])
    await served.chat(session, messages=QUESTION)
    served.script.logprob = float("nan")
    for _ in range(2):
        served.next([5, 6, 7, 8])
        with pytest.raises(Refusal) as refused:
            await served.chat(session, messages=[*QUESTION, {"role": "user", "content": "more"}])
        assert (refused.value.status, refused.value.detail.type) == (500, "logprob_not_finite")
        assert " of turn " in refused.value.detail.message
    served.script.logprob = -0.5
    served.next([5, 6, 7, 8])
    await served.chat(session, messages=[*QUESTION, {"role": "user", "content": "more"}])
    recorded = [logprob for segment in session.trajectory().segments for logprob in segment.logprobs or []]
    assert set(recorded) == {-0.5}
    assert len(recorded) == 8


async def test_a_request_that_finds_the_engine_gone_hears_that_the_server_stops(served: Served):
    """A trainer takes the death of an engine for a sign that a prompt kills servers, and a stop for none."""
    from grpo_rollout.engine import EngineDiedError

    await asyncio.to_thread(served.script.shutdown)
    served.script.errored = True
    with pytest.raises(EngineDiedError, match="the server is stopping") as stopping:
        await served.parts.sessions.turns.engine.generate([5], None, "late")
    refusal = stopping.value.refusal
    assert (refusal.status, refusal.detail.type, refusal.detail.retryable) == (503, "stopping", True)
