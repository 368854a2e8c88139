"""Chat messages on their way to the chat template."""

import pytest

from grpo_proto import Message
from grpo_proto.server.refusal import Refusal
from grpo_rollout.chat_messages import template_messages


def call(arguments: str) -> dict[str, object]:
    return {"id": "c", "function": {"name": "add", "arguments": arguments}}


def test_a_plain_message_is_passed_on_as_it_is():
    assert template_messages([Message(role="user", content="hi")]) == [{"role": "user", "content": "hi"}]


def test_parts_become_text_and_null_becomes_nothing():
    parts = Message.model_validate({"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]})
    calls = Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call('{"x": [1]}')]})
    text, called = template_messages([parts, calls])
    assert text["content"] == "ab"
    assert called["content"] == ""
    assert called["tool_calls"][0]["function"]["arguments"] == {"x": [1]}


@pytest.mark.parametrize("arguments", ["{not json", "[1, 2]", ""])
def test_arguments_that_are_no_object_stay_what_the_model_wrote(arguments: str):
    message = Message.model_validate({"role": "assistant", "content": "x", "tool_calls": [call(arguments)]})
    assert template_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == arguments


def test_an_image_is_refused():
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(Refusal) as refused:
        template_messages([Message.model_validate({"role": "user", "content": [image]})])
    assert (refused.value.status, refused.value.detail.type) == (422, "unsupported_content")
