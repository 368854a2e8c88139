"""Chat completions inside a session, by vLLM's own serving object: its answers, streams, usage and errors.

The object gets our renderer, which returns recorded ids, our engine client, which returns a recorded turn, and a parser
that returns the message as it was recorded. Its incremental parsers would assemble another message than the final one.
"""

import copy
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from pydantic import ValidationError
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall, FunctionCall
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput

from grpo_proto.server.refusal import Refusal

from .chat_form import BadMessagesError, chat_message
from .forest import Turn
from .session import Running, Session
from .turns import Turns, Wanted

KEPT = frozenset(
    {"messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
     "include_reasoning", "user", "metadata"}
)  # fmt: skip
"""Fields of a request that count. `model` is the turn's label; what else a program asks is overruled, and counted."""
UNIMPORTANT = frozenset({"model", "store", "safety_identifier", "prompt_cache_key", "service_tier", "reasoning_effort"})


class Chat:
    """Answers chat completions of sessions; one instance per server. `serving`: vLLM's object for its own route."""

    def __init__(self, serving: OpenAIServingChat, turns: Turns):
        self.serving, self.turns = serving, turns
        self.served_name = serving.models.base_model_paths[0].name

    async def answer(
        self, session: Session, body: Mapping[str, Any], *, retry: bool
    ) -> "tuple[ChatCompletionResponse | ErrorResponse | AsyncGenerator[str, None], Request]":
        """Return vLLM's answer, and the request whose turn it is. Raises Refusal: 400, 410, 503."""
        request = Request(self.turns, session, wanted(session, body), retry)
        fields = {name: value for name, value in body.items() if name in KEPT}
        if fields.get("tool_choice") not in (None, "auto", "none"):
            fields["tool_choice"] = "auto"
        try:
            asked = ChatCompletionRequest(**(fields | {"model": self.served_name}))
        except ValidationError as error:
            raise Refusal(400, "invalid_request", str(error.errors()[0]["msg"])) from error
        return await self._served_by(request).create_chat_completion(asked), request

    def _served_by(self, request: "Request") -> OpenAIServingChat:
        """Return vLLM's object with our parts in it, for one request."""
        serving = cast(Any, _SessionChat.__new__(_SessionChat))
        serving.__dict__.update(self.serving.__dict__)
        serving.request = request
        serving.engine_client = _RecordedClient(self.serving.engine_client, request)
        serving.online_renderer = _recorded_renderer(self.serving.online_renderer, request)
        serving.models = _Labelled(self.serving.models, request.wanted.label or self.served_name)
        return cast(OpenAIServingChat, serving)


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
    tools = body.get("tools") or None
    if tools is not None and (
        not isinstance(tools, list)
        or any(not isinstance(tool, dict) or tool.get("type") != "function" for tool in tools)
    ):
        raise Refusal(400, "unsupported", "tools other than functions are not supported in a session")
    try:
        formed = [chat_message(message, number) for number, message in enumerate(messages)]
    except BadMessagesError as error:
        raise Refusal(400, "invalid_messages", str(error)) from error
    session.forest.counts["overruled"] += _num_overruled(body)
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if any(type(limit) is not int or limit < 1 for limit in limits):
        raise Refusal(400, "invalid_request", "max_tokens is no number of at least 1")
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise Refusal(400, "invalid_request", "stop is neither a text nor a list of texts")
    return Wanted(
        messages=formed,
        tools=tools if body.get("tool_choice") != "none" else None,
        max_tokens=min(limits) if limits else None,
        stop=tuple(stops),
        label=str(body.get("model") or "")[:200],
    )


def _num_overruled(body: Mapping[str, Any]) -> int:
    """Count the fields that the session's sampling overrules."""
    named = sum(value is not None and name not in KEPT | UNIMPORTANT | {"n"} for name, value in body.items())
    return named + (body.get("tool_choice") not in (None, "auto", "none"))


class Request:
    """One request of a program: its turn, once that has begun."""

    def __init__(self, turns: Turns, session: Session, wanted: Wanted, retry: bool):
        self.turns, self.session, self.wanted, self.retry = turns, session, wanted, retry
        self.running: Running | None = None

    async def begin(self) -> list[int]:
        """Begin the turn, and return its prompt."""
        self.running = await self.turns.start(self.session, self.wanted, retry=self.retry)
        turn = self.running.turn
        return turn.segment.token_ids[: turn.start].tolist()

    async def turn(self) -> Turn:
        if self.running is None:
            raise RuntimeError("the turn has not begun")
        return await self.turns.answer(self.session, self.running)

    def delivered(self) -> None:
        if self.running is not None and self.running.turn.answer is not None:
            self.running.turn.delivered = True


class _SessionChat(OpenAIServingChat):  # type: ignore[misc]
    request: Request

    def _make_parser(self, request: Any, tokenizer: Any, chat_template_kwargs: Any) -> Any:
        return _RecordedParser(super()._make_parser(request, tokenizer, chat_template_kwargs), self.request)


class _RecordedParser:
    """Stands in for vLLM's parser, and returns what was read when the turn was recorded."""

    def __init__(self, parser: Any, request: Request):
        self._parser, self._request = parser, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def _read(self) -> tuple[str | None, str | None, list[dict[str, Any]]]:
        turn = self._request.running.turn if self._request.running is not None else None
        message = (turn.message if turn is not None else None) or {}
        calls = turn.calls if turn is not None else []
        return message.get("reasoning_content"), message.get("content") or None, calls

    def parse(self, *_: Any, **__: Any) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        thought, content, calls = self._read()
        found = [FunctionCall(id=call["id"], **call["function"]) for call in calls]
        return thought, content, found or None

    def parse_delta(self, delta_text: str, *_: Any, finished: bool, **__: Any) -> DeltaMessage | None:
        if not finished:
            return None
        thought, content, calls = self._read()
        return DeltaMessage(
            reasoning=thought,
            content=content,
            tool_calls=[
                DeltaToolCall(
                    index=number, id=call["id"], type="function", function=DeltaFunctionCall(**call["function"])
                )
                for number, call in enumerate(calls)
            ],
        )


def _recorded_renderer(renderer: Any, request: Request) -> Any:
    """Return vLLM's renderer with the ids of the record in place of a rendered prompt."""

    async def preprocess_chat(*_: Any, **__: Any) -> tuple[list[Any], list[Any]]:
        return [], [tokens_input(await request.begin())]

    ours = copy.copy(renderer)
    ours.preprocess_chat = preprocess_chat
    return ours


class _RecordedClient:
    """Stands in for vLLM's engine client: one output, the whole turn."""

    def __init__(self, client: Any, request: Request):
        self._client, self._request = client, request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        turn = await self._request.turn()
        completion = CompletionOutput(
            index=0,
            text=turn.text,
            token_ids=turn.token_ids.tolist(),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=turn.finish_reason,
            stop_reason=turn.stop_reason,
        )
        yield RequestOutput(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=turn.segment.token_ids[: turn.start].tolist(),
            prompt_logprobs=None,
            outputs=[completion],
            finished=True,
        )


class _Labelled:
    """vLLM's models, with the name that the program asked for in the answer."""

    def __init__(self, models: Any, label: str):
        self._models, self._label = models, label

    def __getattr__(self, name: str) -> Any:
        return getattr(self._models, name)

    def model_name(self, *_: Any) -> str:
        return self._label


def openai_error(refusal: Refusal) -> bytes:
    """Return a refusal in OpenAI's form."""
    detail = refusal.detail
    message = f"{detail.message} ({detail.hint})" if detail.hint else detail.message
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": detail.type}}).encode()
