"""OpenAI's Responses inside a session, by vLLM's own serving object.

A response is stored nowhere but in the session's record: `previous_response_id` names a turn of it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

from grpo_proto.server.refusal import Refusal

from .chat import label_of
from .chat_form import ChatMessage
from .forest import Turn
from .messages import without_nulls
from .recorded import (
    Answer,
    RecordedParser,
    Request,
    formed,
    is_forced,
    num_overruled,
    raise_if_error,
    request_of,
    with_parts,
)
from .responses_form import chat_messages
from .session import Session
from .turns import Turns
from .wanted import Wanted, checked_limit, checked_tools

KEPT = frozenset(
    {"input", "instructions", "tools", "tool_choice", "max_output_tokens", "stream", "metadata", "user",
     "previous_response_id", "include", "truncation"}
)  # fmt: skip
"""Fields of a request that count, or ask nothing of the sampling. Others are overruled, and counted."""
SENT_ON = KEPT - {"previous_response_id", "include", "truncation"}
REFUSED = ("conversation", "background", "prompt", "previous_input_messages")


class Responses:
    """Answers Responses of sessions; one instance per server. `serving`: vLLM's object for its own route."""

    def __init__(self, serving: OpenAIServingResponses, turns: Turns):
        self.serving, self.turns = serving, turns
        self.served_name = serving.models.base_model_paths[0].name

    async def answer(self, session: Session, body: Mapping[str, Any], *, retry: bool) -> Answer:
        """Return vLLM's answer, and the request whose turn it is. Raises Refusal: 400, 410, 503."""
        self._check(body)
        images: dict[str, str] = {}
        messages = _messages(body, _history(session, body.get("previous_response_id")), images)
        max_tokens = checked_limit(body, "max_output_tokens")
        fields = {name: value for name, value in body.items() if name in SENT_ON and value is not None}
        # Our renderer has the messages; vLLM would validate the whole history again.
        fields["input"] = "."
        if is_forced(fields.get("tool_choice")):
            fields["tool_choice"] = "auto"
        request = request_of(ResponsesRequest, fields | {"model": self.served_name, "store": False})
        session.forest.counts["overruled"] += num_overruled(body, KEPT)

        def form(tools: list[dict[str, Any]] | None) -> Wanted:
            return Wanted(
                messages=messages,
                images=images,
                tools=without_nulls(tools) if body.get("tool_choice") != "none" else None,
                max_tokens=max_tokens,
                label=label_of(body),
            )

        asked = _ResponsesRequest(self.turns, session, form, label=label_of(body), retry=retry)
        asked.response_id = request.request_id
        answer = await with_parts(self.serving, _SessionResponses, asked).create_responses(request)
        if isinstance(answer, AsyncGenerator):
            return Answer(asked, events=_as_events(answer))
        raise_if_error(answer)
        return Answer(asked, body=answer.model_dump(mode="json", by_alias=True))

    def _check(self, body: Mapping[str, Any]) -> None:
        """Raises Refusal (400) for what vLLM would drop without a word."""
        for name in REFUSED:
            if body.get(name):
                raise Refusal(400, "unsupported", f"{name} is not supported in a session: send the history as input")
        tools = checked_tools(body, ("function",), "tools other than functions")
        if tools and body.get("tool_choice") != "none" and not self.serving.enable_auto_tools:
            raise Refusal(
                400,
                "no_tool_parser",
                "this server reads no calls of tools",
                hint="start it with --enable-auto-tool-choice and --tool-call-parser",
            )
        items = body.get("input")
        if not isinstance(items, (str, list)) or not items:
            raise Refusal(400, "invalid_messages", "input is neither a text nor a list of items, or empty")


class _ResponsesRequest(Request):
    response_id = ""

    async def begin(self, tools: list[dict[str, Any]] | None) -> list[int]:
        prompt = await super().begin(tools)
        if self.running is not None:
            self.session.responses[self.response_id] = self.running.turn.number
        return prompt


class _SessionResponses(OpenAIServingResponses):  # type: ignore[misc]
    asked: Request

    def _make_response_parser(self, *_: Any) -> Any:
        return RecordedParser(self.asked) if self.parser is not None else None


def _history(session: Session, response_id: Any) -> list[ChatMessage]:
    """Return the messages up to the answer `response_id`, without instructions, which hold for one request only."""
    if response_id is None:
        return []
    number = session.responses.get(response_id) if isinstance(response_id, str) else None
    turn: Turn | None = session.forest.turns[number] if number is not None else None
    if turn is None or turn.answer is None:
        raise Refusal(
            400, "unknown_response", f"previous_response_id {str(response_id)[:100]} is no answer of this session"
        )
    return [message for message in turn.answer.messages() if message["role"] != "system"]


def _messages(body: Mapping[str, Any], before: Sequence[ChatMessage], images: dict[str, str]) -> list[ChatMessage]:
    """Return what a body says behind the messages `before`; its instructions stand in front, its images in `images`."""
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise Refusal(400, "invalid_request", "instructions is no text")
    first = [{"role": "system", "content": instructions}] if instructions else []
    return [*first, *before, *formed(chat_messages(body["input"]), images)]


async def _as_events(events: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    async for event in events:
        yield f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"
