"""Turn the wire's chat messages into what a chat template reads."""

from collections.abc import Sequence
from typing import Any

from grpo_proto import Message
from grpo_proto.server.refusal import Refusal
from grpo_proto.tool_arguments import parsed_arguments


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` with texts for contents and parsed arguments of tool calls, which templates expect.

    Raises Refusal 422 for a part that is no text: the template would leave a placeholder for it, which would be sampled
    from without anybody noticing.
    """
    return [_template_message(message) for message in messages]


def _template_message(message: Message) -> dict[str, Any]:
    if isinstance(message.content, list):
        other = next((part.type for part in message.content if part.type != "text"), None)
        if other is not None:
            raise Refusal.invalid(
                "unsupported_content",
                f"a message holds a part of type {other[:100]}",
                "send text parts alone; images go beside token_ids, as `images` of the prompt",
            )
    found = message.model_dump() | {"content": message.text}
    for call in found.get("tool_calls") or []:
        call["function"]["arguments"] = parsed_arguments(call["function"]["arguments"])
    return found
