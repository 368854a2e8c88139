"""Agents with tools in four families, through vLLM's renderer, parsers and serving object: the record, to the id."""

import json
import random
from typing import Any

import pytest

from tests.rollout.sessions.families import FAMILIES, Family
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import serve
from tests.rollout.sessions.test_template import TOOLS, split_up, words

pytestmark = IN_PROCESS

CALC = [("calc", {"expr": "37*52"})]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return {name: tmp_path_factory.mktemp(name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
async def served(request: pytest.FixtureRequest, folders: Any) -> Any:
    made = serve(request.param, folders[request.param])
    made.family = FAMILIES[request.param]
    return made


def sampled(
    served: Any, text: str, *, calls: bool = False, cut: bool = False, rng: random.Random | None = None
) -> list[int]:
    """The ids of an answer, and the engine is told to sample them."""
    family: Family = served.family
    ids = split_up(rng, family.name, text) if rng else served.tokenizer.encode(text, add_special_tokens=False)
    if cut:
        served.next(ids, "length")
        return ids
    end = family.end or ("<|observation|>" if calls else "<|user|>")
    ids = [*ids, served.tokenizer.convert_tokens_to_ids(end)]
    served.next(ids, "stop", ids[-1])
    return ids


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def echo(message: dict[str, Any], *, thought: bool) -> dict[str, Any]:
    """The answer as an agent sends it back."""
    sent = {"role": "assistant", "content": message["content"]}
    if calls_of(message):
        sent["tool_calls"] = [call | {"type": "function"} for call in calls_of(message)]
    if thought and message.get("reasoning"):
        sent["reasoning_content"] = message["reasoning"]
    return sent


async def episode(served: Any, rng: random.Random) -> None:
    """A random agent, which keeps a record by hand beside."""
    family: Family = served.family
    encode = lambda text: served.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    tools = TOOLS if rng.random() < 0.7 else None
    system = [{"role": "system", "content": words(rng)}] if rng.random() < 0.5 else []
    messages: list[dict[str, Any]] = [*system, {"role": "user", "content": words(rng)}]
    session = served.open()
    by_hand = await served.rendered_by_vllm(messages=messages, tools=tools)
    spans = []
    for _ in range(rng.randint(1, 4)):
        num_calls = rng.randint(0, family.max_calls) if tools else 0
        calls = [("calc", {"expr": words(rng)}) for _ in range(num_calls)]
        text = "" if calls else "".join(c for c in words(rng) if c not in '{"') or "x"
        thought = (
            "".join(rng.choices("abc ", k=5)).strip() or "t" if family.reasoning_parser and rng.random() < 0.7 else ""
        )
        cut = not calls and rng.random() < 0.2
        ids = sampled(served, family.says(text, thought, calls), calls=bool(calls), cut=cut, rng=rng)
        answer = await served.chat(session, messages=messages, **({"tools": tools} if tools else {}))
        assert served.script.prompts[-1] == by_hand
        message = answer["choices"][0]["message"]
        found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls_of(message)]
        assert found == calls, message
        if calls:
            new = [{"role": "tool", "content": words(rng), "tool_call_id": call["id"]} for call in calls_of(message)]
        else:
            new = [{"role": "user", "content": words(rng)}]
        behind = family.follows(new, tools, system[0]["content"] if system and family.alternates else None)
        spans.append((len(by_hand), len(by_hand) + len(ids)))
        by_hand = by_hand + ids + (encode(family.end) if cut and family.end else [])
        opener = encode(behind)
        by_hand += opener[1:] if family.end is None and not cut and opener[0] == ids[-1] else opener
        messages = [*messages, echo(message, thought=rng.random() < 0.5), *new]
    (segment,) = session.trajectory().segments
    assert [(turn.start, turn.end) for turn in segment.turns] == spans
    assert all(turn.versions == [(3, turn.end - turn.start)] for turn in segment.turns)
    assert session.trajectory().stats.masked == {}


async def test_random_agents_with_tools_go_on_token_by_token(served: Any):
    for seed in range(60):
        await episode(served, random.Random(seed))


async def test_a_stream_has_the_message_of_the_whole_answer(served: Any):
    family: Family = served.family
    for thought, calls in (("", CALC), ("so", CALC), ("so", [])):
        says = family.says("" if calls else "the answer", thought if family.reasoning_parser else "", calls)
        session = served.open(seed=3)
        sampled(served, says, calls=bool(calls))
        body = {"messages": [{"role": "user", "content": "q"}], "tools": TOOLS}
        whole = (await served.chat(session, **body))["choices"][0]
        chunks = await served.chat(session, retry=True, stream=True, **body)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
        streamed = [call for delta in deltas for call in delta.get("tool_calls") or []]
        assert (text, reasoning) == (whole["message"]["content"] or "", whole["message"].get("reasoning") or "")
        assert [(call["id"], call["function"]) for call in streamed] == [
            (call["id"], call["function"]) for call in calls_of(whole["message"])
        ]
        assert len(streamed) == len(calls)
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
        assert session.forest.num_turns == 1


async def test_a_cut_turn_shows_no_call_and_goes_on(served: Any):
    family: Family = served.family
    session = served.open()
    says = family.says("", "", CALC)
    sampled(served, says, cut=True)
    body = {"messages": [{"role": "user", "content": "q"}], "tools": TOOLS}
    choice = (await served.chat(session, **body))["choices"][0]
    assert (calls_of(choice["message"]), choice["finish_reason"]) == ([], "length")
    sampled(served, family.says("done", "", []))
    more = [*body["messages"], echo(choice["message"], thought=False), {"role": "user", "content": "r"}]
    await served.chat(session, **body | {"messages": more})
    assert len(session.trajectory().segments) == 1


async def test_without_tools_what_looks_like_a_call_is_content(served: Any):
    family: Family = served.family
    session = served.open()
    sampled(served, family.says("", "", CALC), calls=True)
    message = (await served.chat(session, messages=[{"role": "user", "content": "q"}]))["choices"][0]["message"]
    assert calls_of(message) == []
    assert "calc" in message["content"]


async def test_the_probe_knows_the_family(served: Any):
    found = served.parts.findings
    facts = (found.suffix_depends_on_prefix, found.refuses_two_users, found.keeps_thinking, found.keeps_prefix)
    expected = {
        "chatml": (False, False, False, True),
        "llama": (False, False, False, True),
        "mistral": (True, True, False, False),
        "glm": (False, False, False, True),
    }
    assert facts == expected[served.family.name]


async def test_thinking_that_the_template_would_drop_stays_in_the_prompt(served: Any):
    family: Family = served.family
    if family.reasoning_parser is None:
        pytest.skip("has no thinking")
    session = served.open()
    sampled(served, family.says("answer", "a thought", []))
    messages = [{"role": "user", "content": "q"}]
    message = (await served.chat(session, messages=messages))["choices"][0]["message"]
    assert message["reasoning"].strip() == "a thought"
    sampled(served, family.says("done", "", []))
    messages += [echo(message, thought=False), {"role": "user", "content": "r"}]
    await served.chat(session, messages=messages)
    assert "a thought" in served.tokenizer.decode(served.script.prompts[-1])
    assert "a thought" not in served.tokenizer.decode(await served.rendered_by_vllm(messages=messages))
