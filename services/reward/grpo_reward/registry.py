"""Which rewards there are: the modules of `grpo_reward.rewards` and the files named by `--plugin`.

Runs in the fork server, never in the server that listens: a plugin's code stays in processes that can be killed.
"""

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from . import rewards as built_in
from .author import Reward


class PluginError(Exception):
    """A plugin cannot be used; the message is for its author."""


def load_rewards(plugins: Iterable[Path]) -> dict[str, Reward]:
    """Name → reward, built-in ones first. Raises PluginError."""
    found: dict[str, Reward] = {}
    origin: dict[str, str] = {}
    files = [(str(path), _import_file(path)) for path in plugins]  # first: what is wrong with them is told soonest
    modules = [
        (f"the built-in {info.name}.py", importlib.import_module(f"{built_in.__name__}.{info.name}"))
        for info in pkgutil.iter_modules(built_in.__path__)
    ]
    for source, module in [*modules, *files]:
        rewards = rewards_of(module)
        if not rewards:
            raise PluginError(f"{source} defines no reward: put @reward above a function")
        for reward in rewards:
            if reward.name in found:
                raise PluginError(
                    f"{source} defines the reward {reward.name}, and so does {origin[reward.name]}: "
                    f'rename it, for example @reward(name="my_{reward.name}")'
                )
            found[reward.name] = reward
            origin[reward.name] = source
    return found


def rewards_of(module: ModuleType) -> list[Reward]:
    """The rewards a module defines; those it imported belong to others."""
    own = {id(value): value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__}
    marks = [getattr(value, "__reward__", None) for value in own.values()]
    return [mark for mark in marks if isinstance(mark, Reward)]


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"there is no plugin file {path}")
    name = f"grpo_reward_plugin_{path.stem}"
    if name in sys.modules:
        raise PluginError(f"two plugin files are called {path.name}: rename one")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # At the end, so that a neighbour of the plugin can be imported and none can stand in for another library.
    sys.path.append(str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        own_lines = (frame.lineno for frame in frames if frame.filename == str(path))
        line = next(own_lines, getattr(error, "lineno", None))
        where = f"{path}, line {line}" if line else str(path)
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    return module
