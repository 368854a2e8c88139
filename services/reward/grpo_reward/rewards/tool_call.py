"""The right tools with the right arguments."""

import json
from typing import Any

from pydantic import BaseModel

from ..author import Score, reward

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Call(BaseModel):
    name: str
    arguments: dict[str, Any] = {}


@reward
def tool_call(
    completion: str, *, tool_calls: list[Call] | str, compare_arguments: bool = True, ordered: bool = False
) -> Score:
    """1 when the completion makes exactly the calls of `tool_calls`, else 0.

    A call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen and Hermes models write it. `tool_calls`
    is a list of such objects, or JSON text of one. Every call counts once, in any order unless `ordered`; one that is
    no valid JSON is a wrong call. With `compare_arguments` false only the names have to be right. Numbers are equal by
    value (1 and 1.0), but true is not 1.

    Source: the exact comparison of ms-swift's `toolbench` at its full score, in JSON.
    """
    wanted = [_key(call.model_dump(), compare_arguments) for call in _calls(tool_calls)]
    made: list[str] = []
    for text in _blocks(completion):
        try:
            made.append(_key(Call.model_validate_json(text).model_dump(), compare_arguments))
        except ValueError:
            return Score(0.0, log={"calls": None})
    right = made == wanted if ordered else sorted(made) == sorted(wanted)
    return Score(float(right), log={"calls": len(made)})


def _calls(column: list[Call] | str) -> list[Call]:
    if isinstance(column, list):
        return column
    try:
        calls = json.loads(column)
        if not isinstance(calls, list):
            raise TypeError
        return [Call.model_validate(call) for call in calls]
    except (TypeError, ValueError):
        raise ValueError("the column tool_calls is no JSON list of objects with name and arguments") from None


def _blocks(text: str) -> list[str]:
    """What stands between the tags; after an opening one without its closing the rest of the text."""
    return [part.partition(CLOSING)[0].strip() for part in text.split(OPENING)[1:]]


def _key(call: dict[str, Any], with_arguments: bool) -> str:
    """Text that is equal for equal calls."""
    return json.dumps(_plain(call) if with_arguments else call["name"], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
