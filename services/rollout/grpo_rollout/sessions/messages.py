"""Anthropic's Messages inside a session, by vLLM's own serving object, which turns them into chat completions."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

from grpo_proto.server.refusal import Refusal

from .chat import label_of
from .messages_form import chat_messages
from .recorded import (
    Answer,
    Form,
    RecordedParser,
    Request,
    formed,
    is_forced,
    num_overruled,
    raise_if_error,
    request_of,
    with_parts,
)
from .session import Session
from .turns import Turns
from .wanted import Wanted, checked_limit, checked_tools

KEPT = frozenset(
    {"messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "metadata"}
)  # fmt: skip
"""Fields of a request that count. `model` is the turn's label; what else a program asks is overruled, and counted."""
COUNTED = frozenset({"messages", "system", "tools", "tool_choice"})
"""Those of a request that counts tokens."""


class Messages:
    """Answers Messages of sessions; one instance per server. `serving`: vLLM's object for its own route."""

    def __init__(self, serving: AnthropicServingMessages, turns: Turns):
        self.serving, self.turns = serving, turns
        self.served_name = serving.models.base_model_paths[0].name

    async def answer(self, session: Session, body: Mapping[str, Any], *, retry: bool) -> Answer:
        """Return vLLM's answer, and the request whose turn it is. Raises Refusal: 400, 410, 503."""
        form = self._form(body)
        if body["messages"][-1].get("role") == "assistant":
            raise Refusal(400, "unsupported", "a session cannot go on with an answer that the program has begun")
        request = self._request(AnthropicMessagesRequest, body, KEPT)
        session.forest.counts["overruled"] += num_overruled(body, KEPT)
        asked = Request(self.turns, session, form, label=label_of(body), retry=retry)
        answer = await with_parts(self.serving, _SessionMessages, asked).create_messages(request)
        if isinstance(answer, AsyncGenerator):
            return Answer(asked, events=answer)
        raise_if_error(answer)
        return Answer(asked, body=answer.model_dump(exclude_none=True))

    async def count(self, session: Session, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return how many tokens the prompt of such a request would have in this session."""
        form = self._form(body)
        request = self._request(AnthropicCountTokensRequest, body, COUNTED)
        asked = _Counting(self.turns, session, form, label=label_of(body), retry=False)
        answer = await with_parts(self.serving, _SessionMessages, asked).count_tokens(request)
        raise_if_error(answer)
        counted: dict[str, Any] = answer.model_dump(exclude_none=True)
        return counted

    def _request(self, kind: type[BaseModel], body: Mapping[str, Any], kept: frozenset[str]) -> Any:
        checked_tools(body, (None, "custom"), "tools that a server runs")
        fields = {name: value for name, value in body.items() if name in kept} | {"model": self.served_name}
        # Our renderer has the messages; vLLM would validate the whole history again.
        fields |= {"messages": [{"role": "user", "content": ""}], "system": None}
        if is_forced(fields.get("tool_choice")):
            fields["tool_choice"] = {"type": "auto"}
        return request_of(kind, fields)

    def _form(self, body: Mapping[str, Any]) -> Form:
        """Raises Refusal (400) for messages that cannot be read."""
        choice = body.get("tool_choice")
        without = isinstance(choice, Mapping) and choice.get("type") == "none"
        images: dict[str, str] = {}
        messages = formed(chat_messages(body, merge_system=self.serving._merge_inline_system), images)
        max_tokens = checked_limit(body, "max_tokens")

        def form(tools: list[dict[str, Any]] | None) -> Wanted:
            return Wanted(
                messages=messages,
                images=images,
                tools=without_nulls(tools) if not without else None,
                max_tokens=max_tokens,
                stop=tuple(body.get("stop_sequences") or ()),
                label=label_of(body),
            )

        return form


class _SessionMessages(AnthropicServingMessages):  # type: ignore[misc]
    asked: Request

    def _make_parser(self, *_: Any) -> Any:
        return RecordedParser(self.asked, objects_only=True)


class _Counting(Request):
    """A request that asks for the length of its prompt and begins no turn."""

    async def begin(self, tools: list[dict[str, Any]] | None) -> list[int]:
        return [0] * await self.turns.measure(self.session, self.form(tools))


def without_nulls(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return tools as a program of chat completions sends them: vLLM fills what was not sent with nulls."""
    if not tools:
        return None
    return [
        tool | {"function": {name: value for name, value in tool["function"].items() if value is not None}}
        for tool in tools
    ]
