"""What files written for ms-swift import, where ms-swift is not installed: bases, registries, and what their calls get.

Such a file begins with `from swift.rewards import ORM, orms`, `from swift.rollout.gym_env import Env, envs` or
`from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns`, and with `swift.plugin` and `swift.llm` in
ms-swift 3. To run it unchanged those names are all that is needed; the real package brings torch and a trainer with it.
One file may hold rewards, environments and schedulers, so every module has all of the names.
"""

import importlib.util
import logging
import sys
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = (
    "swift", "swift.utils", "swift.rewards", "swift.rewards.orm", "swift.rollout", "swift.rollout.gym_env",
    "swift.rollout.multi_turn", "swift.infer_engine", "swift.infer_engine.protocol", "swift.template",
    "swift.plugin", "swift.plugin.orm", "swift.plugin.env", "swift.plugin.multi_turn",
    "swift.llm", "swift.llm.infer", "swift.llm.infer.protocol", "swift.llm.template", "swift.llm.utils",
)  # fmt: skip
"""Parents before their children."""


class ORM:
    """An outcome reward: a subclass has `__call__(self, completions, **columns)` and returns a list of numbers."""

    def __init__(self, args: Any = None, **kwargs: Any):
        self.args = args


class AsyncORM(ORM):
    """The same with an `async` `__call__`."""


class Env:
    """A gym environment: a subclass has `reset(config)`, `step(action)` and `close()`, all of them `async`."""

    def __init__(self, env_config: Any):
        self.env_config = env_config


class RolloutScheduler:
    """The hooks of a scheduler. Raises AttributeError for what is ms-swift's own engine, or of it."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, *args: Any, **kwargs: Any):
        self.max_turns = max_turns

    def __getattr__(self, name: str) -> Any:
        hint = "; there is no engine of ms-swift beside it" if name in ("infer_engine", "engine", "tokenizer") else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name}{hint}", name=name, obj=self)

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        """Before the first turn; may replace the messages of the only request."""

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        """After each turn; its `done` overrules `check_finished`."""
        return {}


class MultiTurnScheduler(RolloutScheduler):
    """A scheduler of turns: a subclass has `step(infer_request, response_choice, current_turn)`."""

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        return response_choice.finish_reason == "length" or bool(self.max_turns and current_turn >= self.max_turns)


class GYMScheduler(MultiTurnScheduler):
    """A scheduler that plays an `Env` of `envs`: the one that a row's `env_config["name"]` or `gym_env` names, else the
    only one there is. Subclasses override its hooks and `_create_env`, and read what it keeps by the request's uuid.
    """

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, **kwargs: Any):
        super().__init__(infer_engine, max_turns, **kwargs)
        self.gym_env_name = kwargs.get("gym_env")
        self._envs: dict[str | None, Any] = {}
        self._total_rewards: dict[str | None, float] = {}
        self._step_rewards: dict[str | None, list[float]] = {}
        self._pending_obs: dict[str | None, Any] = {}

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        envs = registered("envs")
        name = env_config.get("name") or self.gym_env_name or (next(iter(envs)) if len(envs) == 1 else None)
        if name not in envs:
            raise ValueError(
                f"{'env_config has no name' if name is None else f'{name!r} is none of envs'}: envs has "
                f"{', '.join(envs) or 'nothing'}"
            )
        return envs[name](env_config)

    async def _close_and_remove(self, uuid: str | None) -> None:
        env = self._envs.pop(uuid, None)
        for kept in (self._total_rewards, self._step_rewards, self._pending_obs):
            kept.pop(uuid, None)
        if env is not None:
            await env.close()

    async def close(self) -> None:
        """Close what an episode that ended at its limit has left open."""
        for uuid in [*self._envs]:
            await self._close_and_remove(uuid)

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        for request in requests:
            await self._close_and_remove(request.uuid)
            env = self._create_env(request.data_dict.get("env_config") or {})
            observation, _, system = await env.reset(request)
            request.messages = [{"role": "system", "content": system}] if system else []
            request.messages.append({"role": "user", "content": observation})
            self._envs[request.uuid], self._pending_obs[request.uuid] = env, None
            self._total_rewards[request.uuid], self._step_rewards[request.uuid] = 0.0, []

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        uuid = infer_request.uuid
        if uuid not in self._envs:
            return {"done": True, "rollout_infos": {}}
        observation, reward, done, _ = await self._envs[uuid].step(deepcopy(infer_request.messages))
        self._step_rewards.setdefault(uuid, []).append(float(reward))
        self._total_rewards[uuid] = self._total_rewards.get(uuid, 0.0) + float(reward)
        self._pending_obs[uuid] = None if done else observation
        paid = {"total_reward": self._total_rewards[uuid], "step_rewards": [*self._step_rewards[uuid]]}
        if done:
            await self._close_and_remove(uuid)
        return {"done": done, "rollout_infos": {**paid, "gym_done": done}}

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        """Put the environment's answer behind what was said."""
        observation = self._pending_obs.get(infer_request.uuid)
        if observation is not None:
            infer_request.messages.append({"role": "user", "content": observation})
            self._pending_obs[infer_request.uuid] = None
        return {"infer_request": infer_request}


@dataclass
class RolloutInferRequest:
    """The conversation of one row, and its columns in `data_dict`."""

    messages: list[dict[str, Any]]
    images: list[Any] = field(default_factory=list)
    audios: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    tools: list[Any] | None = None
    objects: dict[str, Any] = field(default_factory=dict)
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    data_dict: dict[str, Any] = field(default_factory=dict)
    uuid: str | None = None


@dataclass
class ChatMessage:
    role: str
    content: str
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None


@dataclass
class ChatCompletionResponseChoice:
    """What the policy has said in one turn."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None


def stand_in() -> None:
    """Make the imports of such files work. Does nothing where ms-swift is installed."""
    found = None if "swift" in sys.modules else importlib.util.find_spec("swift")
    if "swift" in sys.modules or (found is not None and found.origin is not None):  # any folder swift/ has a spec
        return
    own_folder: Any = (found and found.submodule_search_locations) or []  # what else is in it can be imported
    classes = (ORM, AsyncORM, Env, RolloutScheduler, MultiTurnScheduler, GYMScheduler, RolloutInferRequest, ChatMessage,
               ChatCompletionResponseChoice)  # fmt: skip
    of_annotations = ("ChatCompletionResponse", "RequestConfig", "RolloutOutput", "Messages")
    contents: dict[str, Any] = {
        **{kind.__name__: kind for kind in classes}, **dict.fromkeys(of_annotations, Any),
        "orms": {}, "prms": {}, "rm_plugins": {}, "envs": {}, "multi_turns": {"gym_scheduler": GYMScheduler},
        "get_logger": lambda *_, **__: logging.getLogger("swift"),
    }  # fmt: skip
    for name in MODULES:
        module = ModuleType(name, __doc__)
        # A package, so that what is missing in it is a ModuleNotFoundError with its name.
        module.__path__ = own_folder if name == "swift" else []
        module.__spec__ = ModuleSpec(name, None, is_package=True)  # libraries ask find_spec whether it is there
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def registered(registry: str) -> dict[str, Any]:
    """Name → class in `orms`, `envs` or `multi_turns`, of ms-swift's or of this stand-in's; empty when no file has
    imported it."""
    for name in MODULES:
        found = getattr(sys.modules.get(name), registry, None)
        if isinstance(found, dict):
            return dict(found)
    return {}


def bases(*names: str) -> tuple[type[Any], ...]:
    """The classes of these names, of ms-swift's or of this stand-in's; empty when no file has imported them."""
    found = [getattr(sys.modules.get(module), name, None) for module in MODULES for name in names]
    return tuple({one for one in found if isinstance(one, type)})


def hint_for(error: BaseException) -> str | None:
    """What to do about an import of ms-swift's that has no stand-in; None for any other error."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "swift":
        return (
            "only rewards, gym environments and schedulers of ms-swift have a stand-in here: pip install ms-swift, or "
            "give a package swift of your own another name"
        )
    return None
