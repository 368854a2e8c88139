"""Turn the wire's chat messages into what a chat template reads."""

import json
from collections.abc import Sequence
from typing import Any

from grpo_proto import Message
from grpo_proto.server.refusal import Refusal


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
                "unsupported_content", f"a message holds a part of type {other[:100]}", "send text parts alone"
            )
    found = message.model_dump() | {"content": message.text}
    for call in found.get("tool_calls") or []:
        call["function"]["arguments"] = _parsed(call["function"]["arguments"])
    return found


def _parsed(arguments: str) -> Any:
    """Parse `arguments`, so that a template does not encode them twice. What is no JSON object stays text."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
