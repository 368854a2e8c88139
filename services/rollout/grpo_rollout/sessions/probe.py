"""Find out at the start what a chat template does to the turns of a session."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from grpo_proto.messages.sessions_info import TemplateFindings

from .chat_form import ChatMessage
from .template import ChatTemplate, Encode, Render, TemplateError

logger = logging.getLogger("vllm.grpo_rollout.sessions")

THOUGHT, ANSWER = "thoughtmarker", "answermarker"
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
RESULT: ChatMessage = {"role": "tool", "content": "r", "tool_call_id": "abcdefghi"}


def _user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def _said(**more: Any) -> ChatMessage:
    return {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT} | more


def probe(render: Render, encode: Encode, special: dict[str, int]) -> tuple[ChatTemplate | None, TemplateFindings]:
    """Return the template, and what was found. The template is None when it cannot continue a turn."""
    try:
        template = ChatTemplate(render, encode, special)
    except TemplateError as error:
        logger.warning("sessions take token ids alone: %s", error)
        return None, TemplateFindings(usable=False, problem=str(error))
    texts = {token_id: text for text, token_id in special.items()}
    answered = [_user("q"), _said(), _user("r")]
    called = [_user("q"), _said(tool_calls=[CALL]), RESULT]
    findings = TemplateFindings(
        usable=True,
        end_token=texts.get(template.end) if template.end is not None else None,
        suffix_depends_on_prefix=template.asks_for_all,
        keeps_thinking=_holds(lambda: THOUGHT in render(answered, None, {}, True)),
        keeps_thinking_before_results=_holds(lambda: THOUGHT in render(called, None, {}, True)),
        keeps_prefix=_holds(lambda: _keeps_prefix(render)),
        refuses_two_users=_refuses(render, [_user("q"), _user("r")]),
        refuses_late_system=_refuses(render, [_user("q"), _said(), {"role": "system", "content": "s"}, _user("r")]),
    )
    return template, findings


def _keeps_prefix(render: Render) -> bool:
    """Return whether the text up to an answer stays when something follows it, with tools and a system message."""
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    before: list[ChatMessage] = [{"role": "system", "content": "s"}, _user("q")]
    prompt = render(before, [tool], {}, True)
    return render([*before, {"role": "assistant", "content": ANSWER}, _user("r")], [tool], {}, True).startswith(prompt)


def _holds(found: Callable[[], bool]) -> bool:
    # Catch everything: a template is a program of the model's author.
    try:
        return found()
    except Exception:
        return False


def _refuses(render: Render, messages: Sequence[ChatMessage]) -> bool:
    try:
        render(list(messages), None, {}, True)
    except Exception:
        return True
    return False
