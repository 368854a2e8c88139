"""Play an episode with a class written for ms-swift, as it is: an `Env` of its gym, or a `MultiTurnScheduler`.

Both are environments that get the whole conversation in place of a message: in ms-swift's `RolloutInferRequest`, with
the row's columns in `data_dict`. A scheduler may only go on behind what was said: which tokens are trained on is what
the policy has sampled, so that it cannot rewrite an answer, its token ids or its loss mask.
"""

import copy
import inspect
import time
import uuid
from collections.abc import Callable
from typing import Any

from grpo_proto.swift_stand_in import (
    ChatCompletionResponseChoice,
    ChatMessage,
    RolloutInferRequest,
    bases,
    registered,
)

from .messages import EnvironmentFault, first_messages, new_messages
from .plays import Choice, Environment, Message, number
from .time_limit import call

LEAST_S = 0.001
"""A timer of 0 is none."""
GIVEN = ("infer_engine", "max_turns")
"""What ms-swift makes a scheduler with; its engine is None here."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BESIDE_MESSAGES = ("images", "audios", "videos", "tools", "objects", "chat_template_kwargs")
"""What a scheduler can change in a request of ms-swift's, and not here."""


def is_gym_environment(made_by: Any) -> bool:
    """Return whether the class of `episodes.environment` was written for ms-swift's gym."""
    return _derived(made_by, "Env") or made_by in registered("envs").values()


def problem_of(made_by: Any) -> str | None:
    """Return why a class cannot play as `episodes.multi_turn_scheduler`, or None."""
    if not _derived(made_by, "MultiTurnScheduler"):
        return "is not derived of ms-swift's MultiTurnScheduler"
    bases_own = [getattr(base, "run", None) for base in bases("MultiTurnScheduler")]
    if getattr(made_by, "run", None) not in bases_own:
        return (
            "overrides run, which samples with ms-swift's own engine: write it as step and check_finished, or as a "
            "program (episodes.agent)"
        )
    for name, parameter in inspect.signature(made_by).parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in VARIADIC
        if is_needed and name not in GIVEN:
            return f"needs {name} to be made, and gets {' and '.join(GIVEN)} alone: give it a default"
    return None


def _derived(made_by: Any, base: str) -> bool:
    return isinstance(made_by, type) and issubclass(made_by, bases(base))


class _OfTheConversation(Environment):
    """Keeps the conversation in `request.messages`, as ms-swift does."""

    request: RolloutInferRequest

    def _begin(self, row: dict[str, Any], prompt: str | list[Message]) -> None:
        columns = {name: value for name, value in row.items() if name != "messages"}
        self.request = RolloutInferRequest(first_messages(prompt), data_dict=columns, uuid=uuid.uuid4().hex)

    def _begun(self, messages: list[Message]) -> dict[str, Any]:
        if not messages:
            raise EnvironmentFault("there is no message that the policy could answer: neither of the row nor of a hook")
        self.request.messages = copy.deepcopy(messages)
        return {"messages": messages, "tools": self.tools.schemas}

    def step(self, *, message: Message, choice: Choice, timeout_s: float, budget_s: float) -> dict[str, Any]:
        self.request.messages.append({**copy.deepcopy(message), "content": message.get("content") or ""})
        found = super().step(message=message, choice=choice, timeout_s=timeout_s, budget_s=budget_s)
        self.request.messages += copy.deepcopy(found["messages"])
        return found


class GymEnvironment(_OfTheConversation):
    """An `Env`: `reset(config) → (observation, info, system message)`, `step(messages) → (…, reward, done, info)`.

    A row's `env_config` goes into its constructor, and `env_config["name"]` chooses another of `envs`.
    """

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        config = row.get("env_config") or {}
        if not isinstance(config, dict):
            raise EnvironmentFault(f"env_config is {config!r:.100}, not an object such as {{'name': …}}")
        name = config.get("name")
        if name is not None and name not in (envs := registered("envs")):
            raise EnvironmentFault(
                f"env_config names {name!r}, which is none of envs: {', '.join(envs) or 'it is empty'}"
            )
        self.instance = call(self.made_by if name is None else envs[name], config, timeout_s=timeout_s)
        self._begin(row, prompt)
        found = call(self.instance.reset, self.request, timeout_s=timeout_s)
        observation, _, system = _parts(found, "reset", "observation, info, system_message")
        begin = [{"role": "system", "content": system}] if system else []
        return self._begun(new_messages([*begin, *_of_the_user(observation)], by="reset"))

    def show(self, *, message: Message, timeout_s: float) -> float | None:
        self.request.messages.append(message)
        return super().show(message=message, timeout_s=timeout_s)

    def _heard(self, message: Message, choice: Choice, timeout_s: float) -> tuple[list[Message], float | None, bool]:
        found = call(self.instance.step, copy.deepcopy(self.request.messages), timeout_s=timeout_s)
        observation, reward, done, _ = _parts(found, "step", "next_observation, reward, done, info")
        answer = [] if done else new_messages(_of_the_user(observation), by="step")
        return answer, number(reward, "the reward of step"), bool(done)


class Scheduler(_OfTheConversation):
    """A `MultiTurnScheduler`: its hooks and `step(infer_request, response_choice, current_turn)`, one for each episode.

    The hooks of a turn share its time. `rollout_infos["total_reward"]`, where there is one, is the episode's reward.
    """

    def __init__(self, made_by: Any, tools: list[Any], *, max_turns: int):
        super().__init__(made_by, tools)
        self.max_turns, self.turn = max_turns, 0
        self.infos: dict[str, Any] = {}
        self.paid = 0.0

    def reset(self, *, row: dict[str, Any], prompt: str | list[Message], seed: int, timeout_s: float) -> dict[str, Any]:
        given = {"infer_engine": None, "max_turns": self.max_turns}
        self.instance = call(self.made_by, **_taken(self.made_by, given), timeout_s=timeout_s)
        self._begin(row, prompt)
        call(self.instance.on_trajectory_start, [self.request], timeout_s=timeout_s)
        self._only_messages()
        return self._begun(new_messages(self.request.messages, by="on_trajectory_start"))

    def _heard(self, message: Message, choice: Choice, timeout_s: float) -> tuple[list[Message], float | None, bool]:
        until_s, before = time.monotonic() + timeout_s, copy.deepcopy(self.request.messages)
        self.turn += 1
        given = ChatMessage(
            "assistant", message.get("content") or "", message.get("tool_calls"), message.get("reasoning_content")
        )
        said = ChatCompletionResponseChoice(0, given, choice["finish_reason"], token_ids=[*choice["token_ids"]])

        def asked(hook: Callable[..., Any]) -> Any:
            left_s = max(LEAST_S, until_s - time.monotonic())
            return call(hook, self.request, said, self.turn, timeout_s=left_s)

        ended = asked(self.instance.on_turn_end) or {}
        finished = asked(self.instance.check_finished)
        done = bool(ended.get("done", finished)) or self.turn >= self.max_turns
        self.infos |= ended.get("rollout_infos") or {}
        new: list[Message] = []
        if not done:
            step = asked(self.instance.step)
            new = self._appended(step, before, choice["token_ids"])
            self.infos |= step.get("rollout_infos") or {}
        return new, self._reward(), done

    def _appended(self, step: Any, before: list[Message], token_ids: list[int]) -> list[Message]:
        """Return the messages that the hooks have put behind `before`; raises EnvironmentFault for any other change."""
        if not isinstance(step, dict) or "infer_request" not in step:
            raise EnvironmentFault(f"step returned {step!r:.100}, not {{'infer_request': …}}")
        ids, mask = step.get("response_token_ids"), step.get("response_loss_mask")
        for field, is_as_sampled in (
            ("response_token_ids", ids is None or list(ids) == token_ids),
            ("response_loss_mask", mask is None or (len(mask) == len(token_ids) and all(mask))),
        ):
            if not is_as_sampled:
                raise EnvironmentFault(
                    f"step returned a {field} of its own: all that the policy has sampled is trained on, and nothing "
                    "else; put what a tool or a tip says into a message of its own"
                )
        self.request = step["infer_request"]
        self._only_messages()
        new = self.request.messages[len(before) :]
        if self.request.messages[: len(before)] != before or (new and new[-1].get("role") == "assistant"):
            raise EnvironmentFault(
                "a hook changed messages that were said, or goes on in the policy's words: append a message of the "
                "user or a tool"
            )
        del self.request.messages[len(before) :]  # they come back as they are checked
        return new_messages(new, by="step")

    def _only_messages(self) -> None:
        if changed := [field for field in BESIDE_MESSAGES if getattr(self.request, field)]:
            raise EnvironmentFault(f"a hook set infer_request.{changed[0]}: only messages reach the policy")

    def _reward(self) -> float | None:
        """Return what this turn has added to `total_reward`; None where nothing says a total."""
        total = number(self.infos.get("total_reward"), "total_reward")
        if total is None:
            return None
        self.paid, before = total, self.paid
        return total - before


def _parts(found: Any, by: str, wanted: str) -> Any:
    if not isinstance(found, (tuple, list)) or len(found) != wanted.count(",") + 1:
        raise EnvironmentFault(f"{by} returned {found!r:.100}, not ({wanted})")
    return found


def _of_the_user(observation: Any) -> list[Message]:
    return [] if observation is None else [{"role": "user", "content": observation}]


def _taken(made_by: Any, given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(made_by).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}
