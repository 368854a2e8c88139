"""What stands in vLLM's serving objects when they answer a request of a session, whichever API they speak.

They get our renderer, which returns recorded ids, our engine client, which returns a recorded turn, and a parser that
returns the message as it was recorded. Their incremental parsers would assemble another message than the final one.
"""

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall, FunctionCall
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput

from grpo_proto.server.refusal import Refusal

from .chat_form import BadMessagesError, ChatMessage, chat_message
from .forest import Turn
from .session import Running, Session
from .turns import Turns
from .wanted import Wanted

RequestT = TypeVar("RequestT", bound=BaseModel)

UNIMPORTANT = frozenset({"model", "store", "safety_identifier", "prompt_cache_key", "service_tier", "reasoning_effort"})
"""Fields that ask nothing of the sampling of a session: they are dropped, and not counted as overruled."""

Form = Callable[["list[dict[str, Any]] | None"], Wanted]
"""Tools in the form of chat completions → what a request asks for."""


class Request:
    """One request of a program: its turn, once that has begun."""

    def __init__(self, turns: Turns, session: Session, form: Form, *, label: str, retry: bool):
        self.turns, self.session, self.form, self.label, self.retry = turns, session, form, label, retry
        self.running: Running | None = None

    async def begin(self, tools: list[dict[str, Any]] | None) -> list[int]:
        """Begin the turn, and return its prompt."""
        self.running = await self.turns.start(self.session, self.form(tools), retry=self.retry)
        return self.running.prompt

    async def turn(self) -> Turn:
        if self.running is None:
            raise RuntimeError("the turn has not begun")
        return await self.turns.answer(self.session, self.running)

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the tokens of the thought in an answer, by the server's parser."""
        prompt = self.running.prompt if self.running is not None else []
        kwargs = self.turns.prompts.kwargs_of(self.session)
        return self.turns.reader.thought_tokens(token_ids, prompt=prompt, kwargs=kwargs)

    def delivered(self) -> None:
        if self.running is not None and self.running.turn.answer is not None:
            self.running.turn.delivered = True


@dataclass(frozen=True)
class Answer:
    """The answer to a request: a JSON object, or the events of a stream."""

    asked: Request
    body: dict[str, Any] | None = None
    events: AsyncGenerator[str, None] | None = None


def with_parts(serving: Any, kind: Any, asked: Request) -> Any:
    """Return vLLM's object `serving` as a `kind`, a subclass of its own class, with our parts in it, for one request.

    `kind` has the attribute `asked`, and a `RecordedParser` for vLLM's parser.
    """
    ours = kind.__new__(kind)
    ours.__dict__.update(serving.__dict__)
    ours.asked = asked
    ours.engine_client = _RecordedClient(serving.engine_client, asked)
    ours.online_renderer = _recorded_renderer(serving.online_renderer, asked)
    ours.models = _Labelled(serving.models, asked.label or serving.models.base_model_paths[0].name)
    return ours


def formed(messages: Sequence[Any], images: dict[str, str]) -> list[ChatMessage]:
    """Return messages in the canonical form, and put their images into `images`.

    Raises Refusal (400) for what cannot be rendered without loss.
    """
    try:
        return [chat_message(message, number, images) for number, message in enumerate(messages)]
    except BadMessagesError as error:
        raise Refusal(400, "invalid_messages", str(error)) from error


def request_of(kind: type[RequestT], fields: Mapping[str, Any]) -> RequestT:
    """Return vLLM's request of these fields. Raises Refusal (400) that names the first that is wrong."""
    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refusal(400, "invalid_request", f"{where}: {first['msg']}") from error


def num_overruled(body: Mapping[str, Any], kept: frozenset[str]) -> int:
    """Count the fields of a request that the session's sampling overrules."""
    named = sum(value is not None and name not in kept | UNIMPORTANT for name, value in body.items())
    return named + is_forced(body.get("tool_choice"))


def is_forced(tool_choice: Any) -> bool:
    kind = tool_choice.get("type") if isinstance(tool_choice, Mapping) else tool_choice
    return kind not in (None, "auto", "none")


def raise_if_error(answer: Any) -> None:
    """Raises Refusal for an error that vLLM's object has returned."""
    if (error := getattr(answer, "error", None)) is not None:
        raise Refusal(error.code, str(error.type), error.message)


class RecordedParser:
    """Stands in for vLLM's parser, of which it makes none, and returns what was read when the turn was recorded.

    `objects_only`: an answer with a call whose arguments are no JSON object is shown as text, for an API that has no
    place for such a call. What the program then sends back is found as that answer.
    """

    reasoning_parser = None
    """What vLLM would ask for the engine's sake; the engine has had the turn's own parameters."""

    def __init__(self, asked: Request, *, objects_only: bool = False):
        self._asked, self._objects_only = asked, objects_only

    def set_prompt_token_ids(self, token_ids: Sequence[int]) -> None:
        """Nothing is parsed here."""

    def _read(self) -> tuple[str | None, str | None, Sequence[dict[str, Any]]]:
        turn = self._asked.running.turn if self._asked.running is not None else None
        if turn is None or turn.answer is None:
            return None, None, []
        message, calls = turn.message or {}, turn.calls
        arguments = (call["function"]["arguments"] for call in message.get("tool_calls", ()))
        if self._objects_only and not all(isinstance(given, dict) for given in arguments):
            turn.answer.alias = {"role": "assistant", "content": turn.text}
            return None, turn.text, []
        return message.get("reasoning_content"), message.get("content") or None, calls

    def parse(self, *_: Any, **__: Any) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        thought, content, calls = self._read()
        found = [FunctionCall(id=call["id"], **call["function"]) for call in calls]
        return thought, content, found or None

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        if self._objects_only:
            return 0  # Anthropic's usage has no place for it
        thought = self._read()[0] or ""
        # Templates write an empty thought as line breaks. Counting takes as long as all of vLLM's object beside it.
        return self._asked.thought_tokens(token_ids) if thought.strip() else 0

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


def _recorded_renderer(renderer: Any, asked: Request) -> Any:
    """Return vLLM's renderer with the ids of the record in place of a rendered prompt."""

    async def preprocess_chat(*_: Any, tool_dicts: Any = None, **__: Any) -> tuple[list[Any], list[Any]]:
        return [], [tokens_input(await asked.begin(tool_dicts))]

    ours = copy.copy(renderer)
    ours.preprocess_chat = preprocess_chat
    return ours


class _RecordedClient:
    """Stands in for vLLM's engine client: one output, the whole turn."""

    errored = False
    """Asked by vLLM before a turn begins. `Turns.start` asks for it, behind what the session has to say."""

    def __init__(self, client: Any, asked: Request):
        self._client, self._asked = client, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        turn = await self._asked.turn()
        running = self._asked.running
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
            prompt_token_ids=running.prompt if running is not None else [],
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
