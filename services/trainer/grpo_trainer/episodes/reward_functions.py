"""Pay an episode by functions written for TRL's `reward_funcs` that read its `environments`.

Such a function has to run where the environment is: in the process of its episode, once, at the end. It gets what its
signature takes of `prompts`, `completions` (all messages behind the prompt), `environments`, the row's columns,
`log_extra` and `log_metric`.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo_proto.diagnostics import MAX_DETAIL_CHARS, BeyondLimitsError, sendable_log, sendable_metrics
from grpo_proto.reward_log import RewardLog
from grpo_proto.tool_arguments import parsed_arguments

from .messages import EnvironmentFault
from .plays import Choice, Environment, Message, Paid, TrlClass, number
from .time_limit import call

RewardFunction = Callable[..., Any]
UNKNOWN = ("completion_ids", "trainer_state")
"""Arguments that TRL passes and an episode's process does not know: tokens are the server's, and which step will train
on the episode is not decided yet."""
RESERVED = ("prompt", "completion", "prompts", "completions", "environments", "log_extra", "log_metric", *UNKNOWN)
"""Names that are no columns for a reward."""


class PaidByFunctions:
    """Play as `play` does, and add the rewards of `functions`, by name, when it is finished."""

    def __init__(self, play: Environment | TrlClass, functions: Mapping[str, RewardFunction]):
        self.play, self.functions = play, functions
        self.columns: dict[str, Any] = {}
        self.prompt: list[Message] = []
        self.completion: list[Message] = []

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        self.columns = {name: copy.deepcopy(value) for name, value in row.items() if name not in RESERVED}
        found = self.play.reset(row=row, prompt=prompt, seed=seed, timeout_s=timeout_s)
        self.prompt = copy.deepcopy(found["messages"])
        return found

    def step(self, *, message: Message, choice: Choice, timeout_s: float, budget_s: float) -> dict[str, Any]:
        said = _as_trl(message)
        found = self.play.step(message=message, choice=choice, timeout_s=timeout_s, budget_s=budget_s)
        self.completion += [said, *copy.deepcopy(found["messages"])]
        return found

    def show(self, *, message: Message, timeout_s: float) -> float | None:
        return self.play.show(message=message, timeout_s=timeout_s)

    def finish(self, *, timeout_s: float) -> dict[str, Paid]:
        """Return the rewards of the functions, and behind them those of `play`, in TRL's order."""
        given: dict[str, Any] = {name: [value] for name, value in self.columns.items()}
        given |= {"prompts": [self.prompt], "completions": [self.completion], "environments": [self.play.instance]}
        rewards: dict[str, Paid] = {}
        for name, function in self.functions.items():
            log = RewardLog(num_samples=1)
            given |= {"log_extra": log.log_extra, "log_metric": log.log_metric}
            try:
                found = call(function, timeout_s=timeout_s, **_taken(function, given))
            except Exception as error:
                raise EnvironmentFault(f"the reward {name} raised {type(error).__name__}: {error}") from error
            rewards[name] = {"score": _only(found, name), **_said(log)}
        return rewards | self.play.finish(timeout_s=timeout_s)

    def close(self, timeout_s: float) -> None:
        self.play.close(timeout_s)


def problem_of(function: RewardFunction) -> str | None:
    """Return why a function cannot pay an episode, or None."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return "has no signature that can be read: write a function around it"
    for name, parameter in parameters.items():
        if name in UNKNOWN and parameter.default is parameter.empty:
            return f"takes {name}, which the process of an episode does not know: give it a default"
    return None


def _as_trl(message: Message) -> Message:
    """Return a copy of a message of the policy whose calls have objects for arguments."""
    said = copy.deepcopy(message)
    for asked in said.get("tool_calls") or ():
        asked["function"]["arguments"] = parsed_arguments(asked["function"].get("arguments") or "{}")
    return said


def _taken(function: RewardFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _said(log: RewardLog) -> Paid:
    """Return what a reward has logged, as it is now. What cannot be kept costs no score: the detail names it."""
    said: Paid = {}
    details: list[str] = []
    for field, sendable, logged in (
        ("metrics", sendable_metrics, log.means),
        ("log", sendable_log, log.columns_of(0)),
    ):
        try:
            kept, left_out = sendable(logged)
        except BeyondLimitsError as error:
            kept, left_out = {}, [f"{field} left out: {error}"]
        details += left_out
        if kept:
            said[field] = copy.deepcopy(kept)
    if details:
        said["detail"] = "; ".join(details)[:MAX_DETAIL_CHARS]
    return said


def _only(found: Any, name: str) -> float | None:
    try:
        values = [] if isinstance(found, str | bytes | Mapping) else list(found)
    except TypeError:
        values = []
    if len(values) != 1:
        raise EnvironmentFault(f"{name} returned {found!r:.100}, not a list of one reward: it gets one episode")
    return number(values[0], name, nan_is_none=True)
