"""OpenAI's chat completions inside a session, by vLLM's own serving object: its answers, streams, usage and errors."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

from grpo_proto.server.refusal import Refusal

from .recorded import Answer, RecordedParser, Request, formed, is_forced, num_overruled, raise_if_error, with_parts
from .session import Session
from .turns import Turns
from .wanted import Wanted, checked_limit, checked_tools

KEPT = frozenset(
    {"messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
     "include_reasoning", "user", "metadata"}
)  # fmt: skip
"""Fields of a request that count. `model` is the turn's label; what else a program asks is overruled, and counted."""


class Chat:
    """Answers chat completions of sessions; one instance per server. `serving`: vLLM's object for its own route."""

    def __init__(self, serving: OpenAIServingChat, turns: Turns):
        self.serving, self.turns = serving, turns
        self.served_name = serving.models.base_model_paths[0].name

    async def answer(self, session: Session, body: Mapping[str, Any], *, retry: bool) -> Answer:
        """Return vLLM's answer, and the request whose turn it is. Raises Refusal: 400, 410, 503."""
        asks = wanted(session, body)
        asked = Request(self.turns, session, lambda _: asks, label=asks.label, retry=retry)
        fields = {name: value for name, value in body.items() if name in KEPT}
        # Our renderer has the messages; vLLM would validate the whole history again.
        fields["messages"] = [{"role": "user", "content": ""}]
        if is_forced(fields.get("tool_choice")):
            fields["tool_choice"] = "auto"
        try:
            request = ChatCompletionRequest(**(fields | {"model": self.served_name}))
        except ValidationError as error:
            raise Refusal(400, "invalid_request", str(error.errors()[0]["msg"])) from error
        answer = await with_parts(self.serving, _SessionChat, asked).create_chat_completion(request)
        if isinstance(answer, AsyncGenerator):
            return Answer(asked, events=answer)
        raise_if_error(answer)
        return Answer(asked, body=answer.model_dump())


class _SessionChat(OpenAIServingChat):  # type: ignore[misc]
    asked: Request

    def _make_parser(self, *_: Any) -> Any:
        return RecordedParser(self.asked)


def wanted(session: Session, body: Mapping[str, Any]) -> Wanted:
    """Return what a body asks for. Raises Refusal (400) for what would be lost without a word."""
    if body.get("n") not in (None, 1):
        raise Refusal(400, "unsupported", f"n is {body['n']}: a session samples one answer at a time")
    for name in ("continue_final_message", "echo", "prompt_embeds"):
        if body.get(name):
            raise Refusal(400, "unsupported", f"{name} is not supported in a session")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "invalid_messages", "messages is no list, or an empty one")
    tools = checked_tools(body, ("function",), "tools other than functions") or None
    images: dict[str, str] = {}
    messages = formed(messages, images)
    session.forest.counts["overruled"] += num_overruled(body, KEPT | {"n"})
    limits = [checked_limit(body, name) for name in ("max_completion_tokens", "max_tokens")]
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise Refusal(400, "invalid_request", "stop is neither a text nor a list of texts")
    return Wanted(
        messages=messages,
        images=images,
        tools=tools if body.get("tool_choice") != "none" else None,
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stop=tuple(stops),
        label=label_of(body),
    )


def label_of(body: Mapping[str, Any]) -> str:
    return str(body.get("model") or "")[:200]
