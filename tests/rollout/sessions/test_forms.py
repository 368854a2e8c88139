"""Items of Responses, and Anthropic's messages, become the chat messages that vLLM makes of them."""

import random
from typing import Any

import pytest

from grpo_proto.server.refusal import Refusal
from tests.rollout.sessions.marks import IN_PROCESS

pytestmark = IN_PROCESS

TEXT = [{"type": "output_text", "text": "and", "annotations": []}]
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "what"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "developer", "content": "be brief"},
    {"role": "assistant", "content": "so"},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": TEXT},
    {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}]},
    {**THOUGHT, "summary": [{"type": "summary_text", "text": "in short"}]},
    THOUGHT,
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "add", "arguments": "no JSON", "namespace": None},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
]


def test_items_of_responses():
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    from grpo_rollout.sessions.recorded import formed
    from grpo_rollout.sessions.responses_form import chat_messages

    rng = random.Random(0)
    for _ in range(500):
        items = rng.choices(ITEMS, k=rng.randint(1, 8))
        request = ResponsesRequest(model="m", input=items)
        theirs = construct_input_messages(request_input=request.input)
        assert formed(chat_messages(items), {}) == formed(theirs, {}), items
    # An answer without a text, which vLLM would not read at all.
    silent = [ITEMS[5], {"type": "message", "role": "assistant", "content": []}]
    assert chat_messages(silent) == [{"role": "assistant", "reasoning": "hm", "content": ""}]
    assert chat_messages("what") == construct_input_messages(request_input="what")


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"type": "function_call", "name": "add", "arguments": "{}"}, "a call without a call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "a call without a call_id or a name"),
        ({"type": "function_call", "call_id": "c", "name": "f", "namespace": "n"}, "a tool in a namespace"),
        ({"type": "reasoning", "encrypted_content": "x"}, "an encrypted thought"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "has no text"),
        ({"type": "reasoning", "content": 5}, "has no text"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: dict[str, Any], says: str):
    from grpo_rollout.sessions.responses_form import chat_messages

    with pytest.raises(Refusal, match=f"item 1 of input .*{says}") as refused:
        chat_messages([{"role": "user", "content": "what"}, item])
    assert refused.value.status == 400


DATA = "iVBORw0KGgo="
URL = f"data:image/png;base64,{DATA}"
IMAGE_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": "what"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text", "text": "this"}, IMAGE_BLOCK, {"type": "text", "text": "that"}]},
    {"role": "assistant", "content": "so"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}, CALL]},
    {"role": "assistant", "content": [CALL, {**CALL, "id": "c2", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "there", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": t} for t in ("2", "3")]},
            {"type": "tool_result", "tool_use_id": "c2"},
        ],
    },
    {"role": "system", "content": "be brief"},
    {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}]},
]
SYSTEMS = [
    None,
    "s",
    "x-anthropic-billing-header: 1, and more",
    [{"type": "text", "text": t} for t in ("x-anthropic-billing-header: 1", "s")],
]


def test_messages_of_anthropic():
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    from grpo_rollout.sessions.messages_form import chat_messages
    from grpo_rollout.sessions.recorded import formed

    rng = random.Random(0)
    for _ in range(500):
        body = {"system": rng.choice(SYSTEMS), "messages": rng.choices(SAID, k=rng.randint(1, 8))}
        request, merges = AnthropicMessagesRequest(model="m", max_tokens=5, **body), rng.random() < 0.5
        theirs = AnthropicServingMessages.to_chat_completion_request(request, merge_inline_system=merges).messages
        ours = chat_messages(body, merge_system=merges)
        assert formed(ours, {}) == formed([dict(one) for one in theirs], {}), body


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("what", "messages.1.role"),
        ({"role": "tool", "content": "2"}, "messages.1.role"),
        ({"role": "user"}, "message 1 has neither a text nor a list of blocks"),
        ({"role": "assistant", "content": [{"type": "image", "source": {}}]}, "a block of type image"),
        ({"role": "user", "content": [{"type": "tool_result", "content": [{"type": "audio"}]}]}, "of type audio"),
        ({"role": "assistant", "content": [{"type": "tool_result"}]}, "is not a user's"),
        ({"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]}, "of type thinking"),
        ({"role": "user", "content": [CALL]}, "of type tool_use"),
        ({"role": "assistant", "content": [{"type": "redacted_thinking"}]}, "of type redacted_thinking"),
        ({"role": "assistant", "content": [{**CALL, "input": "{}"}]}, "a call whose input is no object"),
        ({"role": "user", "content": [{"type": "text"}]}, "a block without text"),
        ({"role": "user", "content": ["text"]}, "a block of type None"),
        ({"role": "system", "content": [CALL]}, "message 1 holds more than text"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(message: Any, says: str):
    from grpo_rollout.sessions.messages_form import chat_messages

    with pytest.raises(Refusal, match=says) as refused:
        chat_messages({"messages": [{"role": "user", "content": "what"}, message]}, merge_system=True)
    assert refused.value.status == 400


def test_texts_of_a_result_stay_on_lines_of_their_own_beside_an_image():
    from grpo_rollout.sessions.messages_form import chat_messages

    texts = [{"type": "text", "text": text} for text in ("1", "2", "3")]
    content = [*texts[:2], IMAGE_BLOCK, texts[2]]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": content}
    [message] = chat_messages({"messages": [{"role": "user", "content": [result]}]}, merge_system=False)
    assert message["content"] == [{"type": "text", "text": "1\n2"}, IMAGE_BLOCK, texts[2]]


def test_an_image_is_the_same_whichever_api_shows_it():
    from grpo_rollout.sessions.messages_form import chat_messages as of_anthropic
    from grpo_rollout.sessions.recorded import formed
    from grpo_rollout.sessions.responses_form import chat_messages as of_responses

    images: dict[str, str] = {}
    said = {"type": "text", "text": "what"}
    sent = [
        {"role": "user", "content": [said, {"type": "image_url", "image_url": {"url": URL}}]},
        {"role": "user", "content": [said, {"type": "image", "image": f"{DATA[:4]}\n{DATA[4:]}\n"}]},
        *of_responses(
            [{"role": "user", "content": [said | {"type": "input_text"}, {"type": "input_image", "image_url": URL}]}]
        ),
        *of_anthropic({"messages": [{"role": "user", "content": [said, IMAGE_BLOCK]}]}, merge_system=True),
    ]
    first, *others = formed(sent, images)
    [name] = images
    assert first["content"] == [said, {"type": "image", "image": name}]
    assert images[name] == DATA
    assert others == [first] * 3
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [said, IMAGE_BLOCK]}
    [tool] = formed(of_anthropic({"messages": [{"role": "user", "content": [result]}]}, merge_system=True), {})
    assert (tool["role"], tool["content"]) == ("tool", first["content"])


@pytest.mark.parametrize(
    ("role", "part", "says"),
    [
        ("user", {"type": "image_url", "image_url": {"url": "https://host/a.png"}}, "shows an image by its URL"),
        ("user", {"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "a data URL .* not base64"),
        ("user", {"type": "image_url"}, "an image without its data"),
        ("user", {"type": "input_audio"}, "a part of type input_audio; send text and images"),
        ("assistant", {"type": "image_url", "image_url": {"url": URL}}, "a part of type image_url; send text alone"),
        ("system", {"type": "image_url", "image_url": {"url": URL}}, "a part of type image_url; send text alone"),
    ],
)
def test_a_part_that_cannot_be_shown_is_named(role: str, part: dict[str, Any], says: str):
    from grpo_rollout.sessions.recorded import formed

    with pytest.raises(Refusal, match=f"message 0 .*{says}|message 0 {says}"):
        formed([{"role": role, "content": [part]}], {})
