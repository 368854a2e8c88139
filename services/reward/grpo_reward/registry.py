"""Which rewards there are: the modules of `grpo_reward.rewards`, installed packages, and what `--plugin` names.

Runs in the fork server, never in the server that listens: a plugin's code stays in processes that can be killed.
"""

import importlib
import logging
import os
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path

from . import rewards as built_in
from .author import Reward
from .plugin import PluginError, installed_rewards, left_out, located, rewards_of, rewards_of_plugin, split_plugin
from .reward_models import MODELS_VARIABLE, UNNAMED, models_in, named_models

log = logging.getLogger("grpo_reward")


def load_rewards(plugins: Iterable[Path], notify: Callable[[str], object] = log.warning) -> dict[str, Reward]:
    """Name → reward, built-in ones first. `notify` is called with what the operator should know. Raises PluginError."""
    of_plugins = plugin_rewards(plugins, notify)  # first: what is wrong is told soonest
    return built_in_rewards() | of_plugins


def built_in_rewards(importing: Callable[[str], object] = lambda model: None) -> dict[str, Reward]:
    """Those of the package, each with the name of its module, and those of `--reward-model`. Raises PluginError.

    `importing` is called with each model of `--reward-model` before it is loaded.
    """
    found = {}
    for name in _built_in_names():
        [found[name]] = rewards_of(importlib.import_module(f"{built_in.__name__}.{name}"))
    for name, model in models_of_rewards().items():
        from .rewards.reward_model import load_model

        importing(f"--reward-model {model}" if name == UNNAMED else f"--reward-model {name}={model}")
        found[name] = load_model(name, model)
    return found


def plugin_rewards(
    plugins: Iterable[Path],
    notify: Callable[[str], object] = log.warning,
    importing: Callable[[str], object] = lambda plugin: None,
) -> dict[str, Reward]:
    """Those of installed packages and of `plugins`; the built-in ones are not imported. Raises PluginError.

    `importing` is called with the name of each before its import, which runs its author's code.
    """
    plugins = [located(plugin) for plugin in plugins]
    found: dict[str, Reward] = {}
    origin = {name: f"--reward-model {name}={model}" for name, model in models_of_rewards().items()}
    origin |= {name: f"the built-in {name}.py" for name in _built_in_names()}
    files = []
    for path in plugins:
        importing(str(path))
        files.append((str(path), rewards_of_plugin(path)))
    for source, rewards in [*installed_rewards(importing), *files]:
        if not rewards:
            raise PluginError(
                f"{source} defines no reward: put @reward above a function, give it a parameter `completions`, or put "
                "an ORM class into orms (from swift.rewards import orms)"
            )
        for reward in rewards:
            if reward.name in origin:
                raise PluginError(
                    f"{source} defines the reward {reward.name}, and so does {origin[reward.name]}: "
                    f'rename it, for example @reward(name="my_{reward.name}")'
                )
            found[reward.name] = reward
            origin[reward.name] = source
    for text in _left_out(plugins):
        notify(text)
    return found


def _built_in_names() -> list[str]:
    return [info.name for info in pkgutil.iter_modules(built_in.__path__)]


def models_of_rewards() -> dict[str, str]:
    """Reward → model of `--reward-model`. Raises PluginError."""
    try:
        models = named_models(models_in(os.environ.get(MODELS_VARIABLE, "")))
    except ValueError as error:
        raise PluginError(f"--reward-model: {error}") from None
    for name in models.keys() & set(_built_in_names()) - {UNNAMED}:
        raise PluginError(f"--reward-model {name}={models[name]}: the built-in {name}.py has that name: take another")
    return models


def _left_out(plugins: list[Path]) -> list[str]:
    asked_for = {(path.absolute(), name) for path, name in map(split_plugin, plugins)}
    return [
        f"{plugin.name}: {name} is left out, as {why}: to serve it, add --plugin {plugin}:{name}; "
        "the name of a helper may begin with _"
        for plugin in plugins
        for name, why in left_out(plugin).items()
        if (plugin.absolute(), name) not in asked_for
    ]
