"""The three ways in which Python code plays an episode, inside its process: what a call of `child.py` does.

    Environment   the user's class with reset, step and close; a message that calls tools goes to the tools, and when
                  it was the last one also to step, without its calls; `swift_plays.py` has classes for ms-swift
    Toolbox       functions alone: the episode ends with the first message that calls none
    TrlClass      a class written for TRL's `environment_factory`: its public methods are tools

Each call returns JSON:

    reset   {"messages": […], "tools": […]}       the first prompt, and the schemas of the tools
    step    {"messages": […], "reward": number or null, "done": bool, "tool_calls": n, "tool_failures": n}
    show    number or null                         the reward of a message that only the tools have seen until now
    finish  {name: {"score": number or null, …}}   rewards of the whole episode, with what they logged
"""

import copy
import inspect
import math
from typing import Any, Protocol

from .messages import EnvironmentFault, first_messages, new_messages
from .pictures import is_pillow, shows_picture
from .time_limit import call
from .tools import Tools

Message = dict[str, Any]
Choice = dict[str, Any]
"""How a turn of the policy was sampled: `{"finish_reason": text, "token_ids": [T numbers]}`; empty where none was."""
Paid = dict[str, Any]
"""A reward of an episode, as the fields of a `RewardScore`: `score`, and `log`, `metrics` and `detail` where it has
some."""


class Play(Protocol):
    def reset(
        self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float
    ) -> dict[str, Any]: ...

    def step(self, *, message: Message, choice: Choice, timeout_s: float, budget_s: float) -> dict[str, Any]: ...

    def show(self, *, message: Message, timeout_s: float) -> float | None: ...

    def finish(self, *, timeout_s: float) -> dict[str, Paid]: ...

    def close(self, timeout_s: float) -> None: ...


class Environment:
    """A user's class: `reset(row, seed) → messages`, `step(message) → (messages, reward, done)`, `close()`."""

    def __init__(self, made_by: Any, tools: list[Any]):
        self.made_by, self.tools = made_by, Tools(tools)
        self.instance: Any = None

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        self.instance = call(self.made_by, timeout_s=timeout_s)
        found = call(self.instance.reset, row, seed, timeout_s=timeout_s)
        messages = new_messages(found, by="reset")
        if not messages:
            raise EnvironmentFault("reset returned no message: the policy needs something to answer")
        return {"messages": messages, "tools": self.tools.schemas}

    def step(self, *, message: Message, choice: Choice, timeout_s: float, budget_s: float) -> dict[str, Any]:
        if message.get("tool_calls") and self.tools.schemas:
            return self.tools.answer(message, timeout_s=timeout_s, budget_s=budget_s)
        messages, reward, done = self._heard(message, choice, timeout_s)
        if not messages and not done:
            raise EnvironmentFault("step returned neither a message nor done: the episode cannot go on")
        return {"messages": messages, "reward": reward, "done": done}

    def show(self, *, message: Message, timeout_s: float) -> float | None:
        _, reward, _ = self._heard(message, {}, timeout_s)
        return reward

    def _heard(self, message: Message, choice: Choice, timeout_s: float) -> tuple[list[Message], float | None, bool]:
        found = call(self.instance.step, copy.deepcopy(message), timeout_s=timeout_s)
        if not isinstance(found, (tuple, list)) or len(found) != 3:
            size = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
            raise EnvironmentFault(f"step returned {type(found).__name__}{size}, not (messages, reward, done)")
        messages, reward, done = found
        return new_messages(messages, by="step"), number(reward, "the reward of step"), bool(done)

    def finish(self, *, timeout_s: float) -> dict[str, Paid]:
        return {}

    def close(self, timeout_s: float) -> None:
        if (close := getattr(self.instance, "close", None)) is not None:
            call(close, timeout_s=timeout_s)


class Toolbox:
    """Functions that the policy may call; nothing else answers it."""

    def __init__(self, tools: list[Any]):
        self.tools = Tools(tools)

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        return {"messages": first_messages(prompt), "tools": self.tools.schemas}

    def step(self, *, message: Message, choice: Choice, timeout_s: float, budget_s: float) -> dict[str, Any]:
        if message.get("tool_calls"):
            return self.tools.answer(message, timeout_s=timeout_s, budget_s=budget_s)
        return {"messages": [], "reward": None, "done": True}

    def show(self, *, message: Message, timeout_s: float) -> float | None:
        return None

    def finish(self, *, timeout_s: float) -> dict[str, Paid]:
        return {}

    def close(self, timeout_s: float) -> None:
        pass


class TrlClass(Toolbox):
    """Plays as TRL 1.16 does: the whole row into `reset`, and what that returns behind the last message; public
    methods are tools; `get_reward` once, under the class's name, or that of a function that makes one.

    `drops_environment`: the class was chosen by the row's `environment`, which TRL keeps to itself.
    """

    def __init__(self, name: str, made_by: Any, tools: list[Any], *, drops_environment: bool):
        self.name, self.made_by, self.functions = name, made_by, tools
        self.drops_environment = drops_environment
        self.instance: Any = None
        super().__init__([])

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        self.instance = call(self.made_by, timeout_s=timeout_s)
        methods = [getattr(self.instance, name) for name in tool_methods(type(self.instance))]
        self.tools = Tools([*self.functions, *methods])
        given = {name: value for name, value in row.items() if not (self.drops_environment and name == "environment")}
        observation = call(self.instance.reset, timeout_s=timeout_s, **given)
        messages = first_messages(prompt)
        if not messages or messages[-1]["role"] in ("system", "developer"):  # a row without a prompt of its own
            messages.append({"role": "user", "content": ""})
        if observation is not None:
            last = messages[-1]
            content = [*_as_parts(last.get("content") or ""), *_as_parts(observation)]
            messages[-1:] = new_messages([{**last, "content": content}], by="reset")
        return {"messages": messages, "tools": self.tools.schemas}

    def finish(self, *, timeout_s: float) -> dict[str, Paid]:
        if not inspect.isfunction(getattr(type(self.instance), "get_reward", None)):
            return {}
        reward = call(self.instance.get_reward, timeout_s=timeout_s)
        return {self.name: {"score": number(reward, "get_reward", nan_is_none=True)}}


def tool_methods(kind: type) -> list[str]:
    """The names of the public methods of a class for TRL, all of which are tools but for those that TRL calls."""
    names = [name for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction)]
    return [name for name in names if not name.startswith("_") and name not in ("reset", "get_reward")]


def _as_parts(observation: Any) -> list[Any]:
    """The parts of what a class for TRL returns from `reset`: a text, or a list of parts."""
    if isinstance(observation, str) or is_pillow(observation):
        return [observation]
    if isinstance(observation, list) and all(
        shows_picture(part) or (isinstance(part, dict) and part.get("type") == "text") for part in observation
    ):
        return observation
    raise EnvironmentFault(
        f"reset returned {type(observation).__name__}: only None, a text, or parts of texts and images can be shown"
    )


def number(value: Any, what: str, *, nan_is_none: bool = False) -> float | None:
    """A reward as a float. Raises EnvironmentFault for NaN, infinity and what is no number."""
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"{what} is {value!r:.100}, no number") from error
    if math.isnan(found) and nan_is_none:
        return None
    if not math.isfinite(found):
        raise EnvironmentFault(f"{what} is {found}; a reward that cannot be computed is None")
    return found
