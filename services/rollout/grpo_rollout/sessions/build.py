"""Put the parts of sessions together on top of a running engine."""

import logging
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_proto.api_token import server_tokens
from grpo_proto.messages.rollout import Sampling
from grpo_proto.messages.sessions_info import SessionsInfo, TemplateFindings

from ..completion_text import special_tokens
from ..engine import Engine, before_shutdown
from ..pushes import Pushes
from ..rollouts import Rollouts
from .chat import Chat
from .chat_form import ChatMessage
from .messages import Messages
from .pictures import Pictures
from .probe import probe
from .prompts import Prompts
from .reading import AnswerReader
from .registry import Sessions
from .responses import Responses
from .turns import Turns


@dataclass(frozen=True)
class SessionParts:
    """What the routes of sessions need. `tokens`: the server's, which open every route."""

    sessions: Sessions
    turns: Turns
    chat: Chat
    messages: Messages
    responses: Responses
    tokens: tuple[str, ...]
    tool_parser: str | None
    reasoning_parser: str | None
    findings: TemplateFindings
    check_sampling: Callable[[Sampling], Awaitable[None]]
    """Raises Refusal (422) for what is impossible with this model."""

    def info(self) -> SessionsInfo:
        return SessionsInfo(
            open=self.sessions.num_open,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            images=self.turns.prompts.pictures.takes_any,
            template=self.findings,
        )


@dataclass(frozen=True)
class VllmServing:
    """vLLM's objects for its own routes: `OpenAIServingChat`, `AnthropicServingMessages`, `OpenAIServingResponses`."""

    chat: Any
    messages: Any
    responses: Any


def build_sessions(
    engine: Engine, pushes: Pushes, rollouts: Rollouts, serving: VllmServing, args: Namespace
) -> SessionParts:
    """Build them."""
    # vLLM's parsers log a traceback for each call that a policy writes wrongly: in a training these are thousands, and
    # the record of a session has the text.
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    chat = serving.chat
    tokenizer = rollouts.tokenizer
    render = partial(_render, tokenizer, rollouts.chat_template)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    special = special_tokens(tokenizer)
    template, findings = probe(render, encode, special)
    sessions = Sessions(pushes, max_model_len=rollouts.max_model_len, advertise_url=args.advertise_url)
    prompts = Prompts(
        template=template,
        pictures=Pictures(rollouts.images),
        text=rollouts.text,
        thread=rollouts.text_thread,
        default_kwargs=chat.default_chat_template_kwargs,
        vocab_size=rollouts.vocab_size,
        placeholder=next((text for text, token_id in special.items() if token_id == rollouts.images.placeholder), None),
    )
    turns = Turns(
        engine,
        prompts,
        reader=AnswerReader(chat.parser_cls, tokenizer, engine.client.model_config, calls=chat.enable_auto_tools),
        text=rollouts.text,
        serves=sessions.serves,
    )
    sessions.turns = turns
    sessions.start()
    before_shutdown(engine.client, sessions.drain)
    return SessionParts(
        sessions=sessions,
        turns=turns,
        chat=Chat(chat, turns),
        messages=Messages(serving.messages, turns),
        responses=Responses(serving.responses, turns),
        tokens=server_tokens(),
        tool_parser=args.tool_call_parser if chat.enable_auto_tools else None,
        reasoning_parser=args.structured_outputs_config.reasoning_parser or None,
        findings=findings,
        check_sampling=rollouts.check_sampling,
    )


def _render(
    tokenizer: Any,
    chat_template: str | None,
    messages: list[ChatMessage],
    tools: list[dict[str, Any]] | None,
    kwargs: Mapping[str, Any],
    prompt: bool,
) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=chat_template, tokenize=False, add_generation_prompt=prompt, **kwargs
    )
    return text
