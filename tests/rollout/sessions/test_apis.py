"""One program that speaks three APIs in one session, in four families, through vLLM's serving objects: one record."""

import json
from typing import Any

import pytest

from grpo_proto.server.refusal import Refusal
from tests.rollout.sessions.families import FAMILIES, Family
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.serving import serve
from tests.rollout.sessions.test_template import TOOLS

pytestmark = IN_PROCESS

QUESTION = {"role": "user", "content": "What is 37*52?"}
RESULT = "1924"
FUNCTION = TOOLS[0]["function"]
ANTHROPIC_TOOLS = [
    {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
]
RESPONSES_TOOLS = [{"type": "function", **FUNCTION}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return {name: tmp_path_factory.mktemp(name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
async def served(request: pytest.FixtureRequest, folders: Any) -> Any:
    made = serve(request.param, folders[request.param])
    made.family = FAMILIES[request.param]
    return made


def will_say(served: Any, text: str, calls: list[Any]) -> None:
    """The engine is told to sample an answer."""
    family: Family = served.family
    end = family.end or ("<|observation|>" if calls else "<|user|>")
    thought = "so" if family.reasoning_parser else ""
    ids = served.tokenizer.encode(family.says(text, thought, calls) + end, add_special_tokens=False)
    served.next(ids, "stop", ids[-1])


async def asked(served: Any, session: Any, api: str, **body: Any) -> Any:
    """The answer of an API as a JSON object, or the events of its stream."""
    answer = await getattr(served.parts, api).answer(session, {"model": "mine", **body}, retry=False)
    if answer.events is None:
        found = answer.body
    else:
        lines = [line async for text in answer.events for line in text.splitlines()]
        found = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    answer.asked.delivered()
    return found


CALLS = [("calc", {"expr": "37*52"})]


async def test_an_answer_is_without_the_programs_stop_string_and_the_record_has_it(served: Any):
    """Agents that read "Action: …" up to "Observation:" write the latter themselves."""
    session = served.open(sampling={"max_tokens": 1000, "stop": ["END"]})
    thought = "so" if served.family.reasoning_parser else ""
    texts = [served.family.says(text, thought, []) for text in ("look\nObservation: ", "doneEND")]
    said, told = (served.tokenizer.encode(text, add_special_tokens=False) for text in texts)
    served.next(said, "stop", "\nObservation:")
    first = await asked(served, session, "chat", messages=[QUESTION], stop=["\nObservation:"])
    message = first["choices"][0]["message"]
    assert message["content"].strip() == "look"
    served.next(told, "stop", "END")
    history = [QUESTION, message, {"role": "user", "content": RESULT}]
    second = await asked(served, session, "chat", messages=history, stop=["\nObservation:"])
    assert second["choices"][0]["message"]["content"].endswith("doneEND")  # the session's own: what is rewarded
    (segment,) = session.forest.segments
    assert [turn.text for turn in segment.turns] == texts
    assert segment.token_ids.tolist()[segment.turns[0].start : segment.turns[0].end] == said


@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize(("by_id", "puts_back"), [(False, False), (False, True), (True, False)])
async def test_a_stop_string_is_cut_where_it_was_completed_and_may_be_put_back(
    served: Any, api: str, by_id: bool, puts_back: bool
):
    """At its first place in the last token; a special token ends a turn by its id."""
    session = served.open()
    thought = "so" if served.family.reasoning_parser else ""
    last, stop, left = (served.family.special[-1],) * 2 + ("look",) if by_id else (" function", "n", "look fu")
    ids = served.tokenizer.encode(served.family.says("look", thought, []) + last, add_special_tokens=False)
    assert served.tokenizer.decode(ids[-1:]) == last
    served.next(ids, "stop", ids[-1] if by_id else stop)
    body = {"max_tokens": 500, "messages": [QUESTION]}
    body |= {"stop": [stop]} if api == "chat" else {"stop_sequences": [stop]}
    answer = await asked(served, session, api, **body)
    said = answer["choices"][0]["message"]["content"] if api == "chat" else answer["content"][-1]["text"]
    assert said.strip() == left
    will_say(served, "done", [])
    told = {"role": "assistant", "content": said + (stop if puts_back else "")}
    await asked(served, session, "chat", messages=[QUESTION, told, {"role": "user", "content": RESULT}])
    assert len(session.forest.segments) == 1


async def test_three_apis_go_on_in_one_segment(served: Any):
    session = served.open()
    will_say(served, "", CALLS)
    body = {"max_tokens": 500, "messages": [QUESTION], "tools": ANTHROPIC_TOOLS}
    message = await asked(served, session, "messages", **body)
    use = message["content"][-1]
    assert (message["stop_reason"], use["name"], use["input"]) == ("tool_use", "calc", {"expr": "37*52"})
    assert (message["model"], message["type"]) == ("mine", "message")

    will_say(served, "It is 1924.", [])
    call = {"type": "function_call", "call_id": use["id"], "name": "calc", "arguments": json.dumps(use["input"])}
    result = {"type": "function_call_output", "call_id": use["id"], "output": RESULT}
    response = await asked(
        served, session, "responses", input=[QUESTION, call, result], tools=RESPONSES_TOOLS, max_output_tokens=500
    )
    assert response["status"] == "completed"
    assert response["output"][-1]["content"][0]["text"].strip() == "It is 1924."
    thinks = served.family.reasoning_parser is not None
    assert (response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0) is thinks

    will_say(served, "Bye.", [])
    sent = {"role": "assistant", "content": None, "tool_calls": [
        {"id": use["id"], "type": "function", "function": {"name": "calc", "arguments": json.dumps(use["input"])}}
    ]}  # fmt: skip
    history = [QUESTION, sent, {"role": "tool", "tool_call_id": use["id"], "content": RESULT},
               {"role": "assistant", "content": "It is 1924."}, {"role": "user", "content": "Bye"}]  # fmt: skip
    answer = await asked(served, session, "chat", messages=history, tools=TOOLS[:1])
    assert answer["choices"][0]["message"]["content"].strip() == "Bye."
    counted = answer["usage"].get("completion_tokens_details")
    assert (counted is not None and counted["reasoning_tokens"] > 0) is thinks

    (segment,) = session.trajectory().segments
    assert len(segment.turns) == 3
    assert session.trajectory().stats.masked == {}
    assert session.trajectory().stats.overruled == 0


async def test_a_stream_of_messages_is_the_recorded_message(served: Any):
    session = served.open()
    will_say(served, "", CALLS)
    body = {"max_tokens": 500, "messages": [QUESTION], "tools": ANTHROPIC_TOOLS, "stream": True}
    events = await asked(served, session, "messages", **body)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    arguments = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    assert (started[-1]["name"], json.loads(arguments)) == ("calc", {"expr": "37*52"})
    (stop,) = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    assert stop == "tool_use"
    (turn,) = session.trajectory().segments[0].turns
    assert turn.masked is None


async def test_a_stream_of_responses_is_the_recorded_message_and_its_id_goes_on(served: Any):
    session = served.open()
    will_say(served, "", CALLS)
    body = {"tools": RESPONSES_TOOLS, "instructions": "Be brief."}
    events = await asked(served, session, "responses", input="What is 37*52?", stream=True, **body)
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    last = events[-1]["response"]
    (call,) = [item for item in last["output"] if item["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("calc", {"expr": "37*52"})

    will_say(served, "It is 1924.", [])
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    second = await asked(served, session, "responses", input=[result], previous_response_id=last["id"], **body)
    assert second["output"][-1]["content"][0]["text"].strip() == "It is 1924."
    (segment,) = session.trajectory().segments
    assert [message["role"] for message in segment.messages] == ["system", "user", "assistant", "tool", "assistant"]


async def test_a_call_that_anthropic_s_form_cannot_hold_is_text_and_goes_on(folders: Any):
    served = serve("chatml", folders["chatml"])
    for streams in (False, True):
        session = served.open()
        text = '<tool_call>\n{"name": "calc", "arguments": "37*52"}\n</tool_call>'
        served.next(served.tokenizer.encode(f"<think>\nso\n</think>{text}<|im_end|>", add_special_tokens=False))
        body: dict[str, Any] = {"max_tokens": 500, "tools": ANTHROPIC_TOOLS}
        found = await asked(served, session, "messages", messages=[QUESTION], stream=streams, **body)
        if streams:
            shown = "".join(e["delta"].get("text", "") for e in found if e["type"] == "content_block_delta")
        else:
            (block,) = found["content"]
            shown = block["text"]
        assert text in shown
        served.next(served.tokenizer.encode("<think>\nso\n</think>x<|im_end|>", add_special_tokens=False))
        history = [QUESTION, {"role": "assistant", "content": shown}, {"role": "user", "content": "Try again."}]
        await asked(served, session, "messages", messages=history, **body)
        assert len(session.trajectory().segments) == 1


async def test_tokens_are_counted_as_the_next_prompt_has_them(served: Any):
    session = served.open()
    body = {"messages": [QUESTION], "tools": ANTHROPIC_TOOLS}
    counted = await served.parts.messages.count(session, {"model": "mine", **body})
    assert session.trajectory().stats.turns == 0
    will_say(served, "x", [])
    message = await asked(served, session, "messages", max_tokens=500, **body)
    assert counted["input_tokens"] == message["usage"]["input_tokens"] == len(served.script.prompts[-1])


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(
    ("api", "body", "says"),
    [
        ("messages", {"messages": [{"role": "user", "content": [IMAGE]}]}, "this server takes 0"),
        ("messages", {"messages": [QUESTION, {"role": "assistant", "content": "It"}]}, "has begun"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools that a server runs"),
        ("messages", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ("messages", {"messages": []}, "an empty one"),
        ("messages", {"max_tokens": None}, "max_tokens"),
        ("messages", {"max_tokens": 5.0}, "max_tokens is no number"),
        ("messages", {"tools": 5}, "tools that a server runs"),
        ("chat", {"max_tokens": True}, "max_tokens is no number"),
        ("responses", {"max_output_tokens": 5.0}, "max_output_tokens is no number"),
        ("responses", {"max_output_tokens": "5"}, "max_output_tokens is no number"),
        ("responses", {"tools": 5}, "tools other than functions"),
        ("responses", {"input": [{"type": ["message"], "role": "user", "content": "x"}]}, "the type"),
        ("responses", {"input": [{"content": "x"}, {"role": "assistant", "content": "y"}]}, "message 0 has the role"),
        ("responses", {"previous_response_id": "resp_x"}, "no answer of this session"),
        ("responses", {"conversation": "c"}, "conversation is not supported"),
        ("responses", {"background": True}, "background is not supported"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools other than functions"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "the type item_reference"),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": "r"}]}, "nobody made"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "an image without its data"),
    ],
)
async def test_what_would_be_lost_is_refused(folders: Any, api: str, body: dict[str, Any], says: str):
    served = serve("chatml", folders["chatml"])
    session = served.open()
    base: dict[str, Any] = {"input": "q"} if api == "responses" else {"messages": [QUESTION], "max_tokens": 5}
    with pytest.raises(Refusal, match=says) as refused:
        await asked(served, session, api, **base | body)
    assert refused.value.status == 400
    assert session.forest.num_turns == 0
