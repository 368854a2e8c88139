"""The right tools with the right arguments."""

import json
import re
from typing import Any

from pydantic import BaseModel, model_validator

from grpo_proto.nesting import nesting
from grpo_proto.nulls import without_nulls

from ..answers.place import THINK_CLOSING, THINK_OPENING
from ..author import Score, reward
from ..strict_json import MAX_DEPTH, strict_json, strict_json_at

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_BLANKS = re.compile(r"\s*+")


_ARGUMENTS = ("arguments", "parameters", "args", "input")


class Call(BaseModel):
    name: str
    arguments: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _read(cls, call: Any) -> Any:
        """Arguments by their usual names, without the nulls with which Arrow fills up the keys of other rows."""
        if not isinstance(call, dict) or nesting(call) > MAX_DEPTH:
            return call  # which is refused
        call = without_nulls(call)
        given = [name for name in _ARGUMENTS if name in call]
        others = [name for name in call if name not in (*_ARGUMENTS, "name", "id", "type", "index")]
        if len(given) > 1 or (others and not given):
            raise ValueError(f"{(given[1:] or others)[0]!r} is no key of a call: it has name and arguments")
        return {**call, "arguments": call[given[0]]} if given else call


class WantedCall(Call):
    """A call of the column, which may also be as OpenAI's API has it: under `function`, with arguments as JSON text."""

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, call: Any) -> Any:
        if not isinstance(call, dict) or nesting(call) > MAX_DEPTH + 1:
            return call
        call = without_nulls(call)
        call = call["function"] if isinstance(call.get("function"), dict) else call
        texts = {name: call[name] for name in _ARGUMENTS if isinstance(call.get(name), str)}
        return {**call, **{name: _arguments(text) for name, text in texts.items()}}


def _arguments(text: str) -> Any:
    """Raises ValueError for what is no JSON; empty text is a call without arguments."""
    try:
        return strict_json(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from None


@reward
def tool_call(
    completion: str,
    *,
    tool_calls: list[WantedCall] | str,
    compare_arguments: bool = True,
    ordered: bool = False,
    prefix: str = "",
) -> Score:
    """1 when the completion makes exactly the calls of `tool_calls`, else 0.

    A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen and Hermes models write it. `tool_calls`
    is a list of such objects, or JSON text of one; `parameters`, `args` and `input` are read as `arguments`, and a null
    is no argument: Arrow fills the keys of other rows with it. There, not in the completion, a call may also be as
    OpenAI's API has it, `{"type": "function", "function": {…}}`, and its arguments JSON text. Every call counts once,
    in any order unless `ordered`. With `compare_arguments` false only the names have to be right. Numbers are equal by
    value (1 and 1.0), but true is not 1.

    A call that is no valid JSON is a wrong one; so is an object with the same key twice (readers differ in which one
    counts), NaN, and more than 32 nested levels. The last closing tag may be missing, as it is where it ends the
    sampling. What stands in `<think>` is no call: nobody runs it. A column with a call that is nested more deeply is an
    error.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: the exact comparison of ms-swift's `toolbench` at its full score, in JSON.
    """
    wanted = [_key(call.model_dump(), compare_arguments) for call in _calls(tool_calls)]
    try:
        made = [_key(call.model_dump(), compare_arguments) for call in _made(_without_thoughts(prefix + completion))]
    except (ValueError, RecursionError):
        return Score(0.0, log={"calls": None})
    right = made == wanted if ordered else sorted(made) == sorted(wanted)
    return Score(float(right), log={"calls": len(made)})


def _calls(column: list[WantedCall] | str) -> list[WantedCall]:
    try:
        calls = _from_text(column) if isinstance(column, str) else column
    except (TypeError, ValueError):
        raise ValueError("the column tool_calls is no JSON list of objects with name and arguments") from None
    except RecursionError:
        calls = None
    # A call is an object around its arguments: deeper than one that is made can be.
    if calls is None or any(nesting(call.arguments) >= MAX_DEPTH for call in calls):
        raise ValueError(
            f"the column tool_calls has a call of more than {MAX_DEPTH} nested levels, which none may have"
        )
    return calls


def _from_text(column: str) -> list[WantedCall]:
    calls = json.loads(column)
    if not isinstance(calls, list):
        raise TypeError
    return [WantedCall.model_validate(call) for call in calls]


def _without_thoughts(text: str) -> str:
    """A block without its opening tag begins at the start, as the prompt has it; without its closing it never ends."""
    *before, last = text.split(THINK_CLOSING)
    kept = [part.partition(THINK_OPENING)[0] for part in before if THINK_OPENING in part]
    return "\n".join([*kept, last.partition(THINK_OPENING)[0]])


def _made(text: str) -> list[Call]:
    """Raises ValueError or RecursionError for one that is no call. A tag within a JSON string is text."""
    calls = []
    end = 0
    while (start := text.find(OPENING, end)) >= 0:
        value, end = strict_json_at(text, _after_blanks(text, start + len(OPENING)))
        end = _after_blanks(text, end)
        if end < len(text) and not text.startswith(CLOSING, end):
            raise ValueError("something else than a call stands between the tags")
        calls.append(Call.model_validate(value))
    return calls


def _after_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def _key(call: dict[str, Any], with_arguments: bool) -> str:
    """Text that is equal for equal calls."""
    return json.dumps(_plain(call) if with_arguments else call["name"], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
