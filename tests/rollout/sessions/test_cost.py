"""What a turn and an idle session cost beside the engine: calls and bytes, which a busy machine leaves as they are."""

import cProfile
import gc
import pstats
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from grpo_proto.messages.sessions import GenerateTurn
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import Served, serve

pytestmark = IN_PROCESS

AGAIN = {"role": "user", "content": "again and again"}
EARLY, LATE = 10, 50
MAX_CALLS_A_MESSAGE = 8
"""Of the history that a chat request sends each time: find its form, and its place in the record."""
MAX_SESSION_BYTES = 10_000


@pytest.fixture
async def served(tmp_path: Path) -> Served:
    return serve("chatml", tmp_path)


def will_answer(served: Served) -> None:
    text = "<think>\n\n</think>\n\nthe answer<|im_end|>"
    served.next(served.tokenizer.encode(text, add_special_tokens=False))
    served.script.prompts.clear()


async def chat(served: Served, session: Any, messages: list[Any]) -> None:
    """One turn; the answer and the next question come behind `messages`."""
    await asked(served, session, messages, "chat", messages=messages)


async def responses(served: Served, session: Any, items: list[Any]) -> None:
    await asked(served, session, items, "responses", input=items)


async def messages(served: Served, session: Any, messages: list[Any]) -> None:
    await asked(served, session, messages, "messages", messages=messages, max_tokens=100)


async def asked(served: Served, session: Any, history: list[Any], api: str, **body: Any) -> None:
    will_answer(served)
    answer = await getattr(served.parts, api).answer(session, {"model": "m", **body}, retry=False)
    answer.asked.delivered()
    history += [{"role": "assistant", "content": answer.asked.running.turn.message["content"]}, AGAIN]


async def generate(served: Served, session: Any, turns: list[int]) -> None:
    from grpo_rollout.sessions.routes import _generate, generated

    will_answer(served)
    body = GenerateTurn(messages=[AGAIN], parent=turns[-1] if turns else None)
    turns.append(generated(await _generate(served.parts, session, body, retry=False)).turn)


async def num_calls(served: Served, turn: Any) -> dict[int, int]:
    """How many Python functions are called in an early turn of a session and in a late one."""
    found, session, so_far = {}, served.open(), [] if turn is generate else [AGAIN]
    for number in range(LATE + 1):
        if number not in (EARLY, LATE):
            await turn(served, session, so_far)
            continue
        with cProfile.Profile(builtins=False) as profile:
            await turn(served, session, so_far)
        stats: dict[tuple[str, int, str], tuple[int, int]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        # The loop sweeps out cancelled timers by the hundred, in whichever turn that falls.
        found[number] = sum(row[1] for (file, *_), row in stats.items() if "/asyncio/" not in file)
    assert len(session.forest.segments) == 1
    return found


async def test_a_turn_behind_another_costs_the_same_however_long_the_history(served: Served):
    calls = await num_calls(served, generate)
    assert calls[LATE] <= calls[EARLY] * 1.1 + 20


@pytest.mark.parametrize("api", [chat, responses, messages])
async def test_a_message_of_the_history_costs_a_few_calls(served: Served, api: Any):
    calls = await num_calls(served, api)
    assert calls[LATE] - calls[EARLY] <= MAX_CALLS_A_MESSAGE * 2 * (LATE - EARLY) + 50


async def test_an_idle_session_of_three_turns_is_small(served: Served):
    async def session() -> Any:
        opened, messages = served.open(), [AGAIN]
        for _ in range(3):
            await chat(served, opened, messages)
        return opened

    kept = [await session() for _ in range(5)]
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept += [await session() for _ in range(50)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = sum(4 * (len(segment.token_ids) + len(segment.logprobs)) for segment in kept[-1].forest.segments)
    assert (after - before) / 50 - tokens <= MAX_SESSION_BYTES
