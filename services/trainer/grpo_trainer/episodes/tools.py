"""Functions that the policy calls, inside the process of an episode. Whatever goes wrong is an observation for it.
A result is its text, an image of Pillow, or a list of parts.

The texts of failures are TRL's, so that a policy sees the same from either trainer.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from .messages import EnvironmentFault, Room
from .pictures import shows_picture
from .time_limit import call

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


class Tools:
    """`schemas`: as chat templates take them, made of types and docstrings. Raises EnvironmentFault without these."""

    def __init__(self, functions: Sequence[Callable[..., Any]]):
        self.functions = {function.__name__: function for function in functions}
        self.schemas = [schema_of(function) for function in functions]

    def answer(self, message: Message, *, timeout_s: float, budget_s: float) -> dict[str, Any]:
        """Call what `message` asks for, one after the other: `timeout_s` each, `budget_s` all together."""
        until_s = time.monotonic() + budget_s
        messages, failures, room = [], 0, Room()
        for asked in message["tool_calls"]:
            limit_s = min(timeout_s, until_s - time.monotonic())
            content, failed = self._answer(asked["function"], limit_s, room)
            failures += failed
            messages.append(result(asked, content))
        return {
            "messages": messages, "reward": None, "done": False,
            "tool_calls": len(messages), "tool_failures": failures,
        }  # fmt: skip

    def _answer(self, function: dict[str, Any], limit_s: float, room: Room) -> tuple[Content, bool]:
        """The content of one result, and whether the call failed."""
        name = function["name"]
        try:
            if name not in self.functions:
                raise ValueError(f"Tool {name} not found.")
            if limit_s <= 0:
                raise TimeoutError("not called: the calls before it have used up the time")
            found = call(self.functions[name], timeout_s=limit_s, **arguments_of(function))
            found = list(found) if isinstance(found, tuple) and any(map(shows_picture, found)) else found
            return room.content(found if shows_picture(found) or _are_parts(found) else str(found), name), False
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a tool that calls exit() has failed
            return room.text(failure(str(error) or type(error).__name__)), True


def arguments_of(function: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call. Raises EnvironmentFault unless they are a JSON object."""
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise EnvironmentFault(f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise EnvironmentFault("the arguments are no JSON object")
    return arguments


def failure(text: str) -> str:
    return str({"error": text})


def result(asked: dict[str, Any], content: Content) -> Message:
    """The message that answers one call."""
    return {"role": "tool", "tool_call_id": asked["id"], "name": asked["function"]["name"], "content": content}


def late_results(message: Message, why: str) -> list[Message]:
    """The results of all calls of a message when none of them has returned."""
    return [result(asked, failure(why)) for asked in message.get("tool_calls", ())]


def _are_parts(found: Any) -> bool:
    """Whether a tool's result is a list of parts, or of images and texts."""
    if not isinstance(found, list) or not found:
        return False
    return any(map(shows_picture, found)) or all(isinstance(part, dict) and "type" in part for part in found)


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema that transformers makes of types and docstring. Raises EnvironmentFault."""
    from transformers.utils import chat_template_utils

    # It imports torch to know the type of a tensor. Every process of an episode is forked of the one that does this,
    # and a fork copies the tables of all its pages: 7 ms without torch, 19 ms with it.
    chat_template_utils.is_torch_available = lambda: False
    try:
        schema: dict[str, Any] = chat_template_utils.get_json_schema(function)
    except Exception as error:  # whatever it finds wrong with a user's signature or docstring
        raise EnvironmentFault(f"no schema can be made of the tool {function.__name__}: {error}") from error
    return schema
