"""A Python file or an installed package with more rewards: found, imported, and looked through.

A plugin is written `FILE.py`, for all rewards in it, or `FILE.py:NAME`, for one. What counts as a reward:

- a function under `@reward`;
- a class registered in ms-swift's `orms`;
- in a file with none of these, every public function with a parameter `completions`, as TRL takes it.

`FILE.py:NAME` may name any of them, also a function beside marked ones or an unregistered class. What looks like a
reward and is none of the file's is told (`left_out`): it may be a helper, or what its author has forgotten.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_proto.swift_stand_in import bases, hint_for, registered, stand_in

from .author import MARKED, Reward
from .foreign import swift_reward, trl_reward
from .scorer import PLUGIN_MODULES, line_of_plugin

ENTRY_POINTS = "grpo_reward.rewards"
"""The group in which an installed package names its rewards: `name = "module"` or `name = "module:function"`."""


class PluginError(Exception):
    """A plugin cannot be used; the message is for its author."""


@contextlib.contextmanager
def forks_end_here() -> Iterator[None]:
    """A child that code inside forks, and that comes out, ends: it would go on as a second one of this process."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            error = sys.exception()
            if error is not None and not isinstance(error, SystemExit):
                traceback.print_exc()
            os._exit(0 if error is None else 1)


def split_plugin(plugin: Path) -> tuple[Path, str | None]:
    """`folder/file.py:name` → the file, and the name or None."""
    file, colon, name = str(plugin).rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (plugin, None)


def located(plugin: Path) -> Path:
    """`plugin` from the root, since the import of any plugin may change the folder. Raises PluginError."""
    path, name = split_plugin(plugin)
    if name == "":
        raise PluginError(f"{plugin} names no reward after the colon: leave it out for all that are in the file")
    if path.is_dir():
        raise PluginError(f"{path} is a folder: name a Python file, such as {path / 'my_rewards.py'}")
    if not path.is_file():
        raise PluginError(f"there is no plugin file {path}")
    return Path(os.path.abspath(plugin))


def rewards_of_plugin(plugin: Path) -> list[Reward]:
    """Raises PluginError."""
    located(plugin)
    path, name = split_plugin(plugin)
    stand_in()
    before = registered("orms")
    module = _import_file(path)
    classes = {key: value for key, value in registered("orms").items() if before.get(key) is not value}
    # A file named a second time is not run again; what it registered then is told by where it was written.
    classes |= {key: value for key, value in registered("orms").items() if _written_in(value, module)}
    try:
        if name is not None:
            return [_named(module, classes, name, path)]
        found = rewards_of(module) + [swift_reward(value, name=key, file=path) for key, value in classes.items()]
        return found or [trl_reward(value, name=key, file=path) for key, value in _trl_functions(module)]
    except TypeError as error:
        raise PluginError(f"{path}: {error}") from error


def left_out(plugin: Path) -> dict[str, str]:
    """What in a loaded `FILE.py` looks like a reward and is none of the file's: name → why."""
    path, name = split_plugin(plugin)
    if name is not None:
        return {}
    module = sys.modules[f"{PLUGIN_MODULES}{path.stem}"]
    in_orms = [value for value in registered("orms").values() if isinstance(value, type)]
    found: dict[str, str] = {}
    marked = bool(rewards_of(module))
    if marked or any(_written_in(value, module) for value in in_orms):
        functions = [key for key, value in _trl_functions(module) if not isinstance(_mark(value), Reward)]
        how = "marks its rewards with @reward" if marked else "has its rewards in orms"
        found = dict.fromkeys(functions, f"the file {how}")
    for key, value in vars(module).items():
        if key.startswith("_") or inspect.isfunction(value) or value in in_orms:
            continue
        if isinstance(value, type) and issubclass(value, bases("ORM", "AsyncORM")):
            if _written_in(value, module) and not any(issubclass(one, value) for one in in_orms):  # nor the base of one
                found[key] = "it is not in orms"
        elif _takes_completions(value, module):
            found[key] = "it is no function of the file"
    return found


def _takes_completions(value: Any, module: ModuleType) -> bool:
    """Whether a class, an object, a partial or a cached function of this module is called with `completions`."""
    try:
        whose = value if isinstance(value, type) else inspect.unwrap(getattr(value, "func", value))
        if not _written_in(whose if hasattr(whose, "__qualname__") else type(whose), module):
            return False
        called = value.__call__ if isinstance(value, type) else value
        return "completions" in inspect.signature(called).parameters and not isinstance(_mark(value), Reward)
    except Exception:  # what is no callable; or the object is the author's, and answers as it likes
        return False


def rewards_of(module: ModuleType) -> list[Reward]:
    """The marked rewards a module defines; those it imported belong to others. TypeError when one hides another."""
    own = {id(value): value for value in vars(module).values() if _written_in(value, module) or _wraps(value, module)}
    marked = [(value, mark) for value in own.values() if isinstance(mark := _mark(value), Reward)]
    marks = [mark for _, mark in marked]
    for first, second in itertools.combinations(marks, 2):
        if first.name == second.name and first is not second:
            raise TypeError(f"lines {_line(first)} and {_line(second)} both define the reward {first.name}: rename one")
    for mark in MARKED:
        function = inspect.unwrap(mark.function)
        if getattr(function, "__globals__", None) is not vars(module) or any(mark is found for found in marks):
            continue
        elsewhere = getattr(mark.function, "__globals__", {})
        if any(value is mark.function for value in elsewhere.values()):  # it wraps one from here
            continue
        if (name := function.__name__) in vars(module):
            after = [_line(found) for found in marks if found.function.__name__ == name]
            where = f"lines {_line(mark)} and {after[0]}" if after else f"line {_line(mark)}"
            raise TypeError(f"{where}: the reward {mark.name} is lost, as {name} is defined once more: rename one")
    themselves = {id(mark) for value, mark in marked if mark.function is value}
    return [_as_held(value, mark) for value, mark in marked if mark.function is value or id(mark) not in themselves]


def _as_held(value: Any, mark: Reward) -> Reward:
    """A decorator above `@reward` has put another function in its place, and the mark on that (`functools.wraps`)."""
    return mark if mark.function is value else dataclasses.replace(mark, function=value)


def _line(mark: Reward) -> int:
    return int(inspect.unwrap(mark.function).__code__.co_firstlineno)


def _mark(value: Any) -> Any:
    return getattr(value, "__reward__", None)


def any_installed() -> bool:
    """Whether an installed package names rewards; nothing of it is imported."""
    return bool(importlib.metadata.entry_points(group=ENTRY_POINTS))


def installed_rewards(importing: Callable[[str], object]) -> Iterator[tuple[str, list[Reward]]]:
    """Every entry point of installed packages: where it is from, and its rewards. Raises PluginError.

    `importing`: see `plugin_rewards`.
    """
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        source = f"the entry point {point.name} = {point.value}"
        importing(source)
        try:
            with forks_end_here():
                value = point.load()
            if isinstance(value, ModuleType):
                yield source, rewards_of(value)
            else:
                yield source, [_reward_of(value, point.name, Path(inspect.getfile(value)))]
        except Exception as error:
            raise PluginError(f"{source}: {type(error).__name__}: {error}") from error


def _named(module: ModuleType, classes: dict[str, type[Any]], name: str, path: Path) -> Reward:
    marked = {reward.name: reward for reward in rewards_of(module)}
    if name in marked:
        return marked[name]
    value = classes.get(name, getattr(module, name, None))
    if not callable(value):
        known = [*marked, *classes, *(key for key, _ in _trl_functions(module))]
        raise PluginError(f"{path} has no reward {name}; it has {', '.join(known) or 'none'}")
    return _reward_of(value, name, path)


def _reward_of(value: Any, name: str, file: Path) -> Reward:
    mark = _mark(value)
    if isinstance(mark, Reward):
        return _as_held(value, mark)
    return (swift_reward if isinstance(value, type) else trl_reward)(value, name=name, file=file)


def _trl_functions(module: ModuleType) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and _written_in(value, module)
        and "completions" in inspect.signature(value).parameters
    ]


def _written_in(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _wraps(value: Any, module: ModuleType) -> bool:
    """Whether it is a marked function of this module under the name of another's: `functools.wraps` gives it that."""
    mark = _mark(value)
    return isinstance(mark, Reward) and mark.function is value and value.__globals__ is vars(module)


def _import_file(path: Path) -> ModuleType:
    name, file = f"{PLUGIN_MODULES}{path.stem}", os.path.abspath(path)
    known = sys.modules.get(name)
    if known is not None:
        if known.__file__ == file:
            return known
        raise PluginError(f"two plugin files are called {path.name}: rename one")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # At the end, so that a neighbour of the plugin can be imported and none can stand in for another library.
    sys.path.append(str(path.parent.resolve()))
    try:
        with forks_end_here():
            spec.loader.exec_module(module)
    except BaseException as error:
        found = line_of_plugin(error)
        line = found[1] if found else getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        # A SyntaxError's own text names file and line once more.
        told = error.msg if isinstance(error, SyntaxError) and error.filename == file else error
        hint = hint_for(error)
        raise PluginError(f"{where}: {type(error).__name__}: {_one_line(told)}{f'; {hint}' if hint else ''}") from error
    return module


def _one_line(told: Any) -> str:
    """`told` on one line: the text of an exception, or an exception, whose class may be the plugin's own."""
    try:
        return " ".join(str(told).split())
    except BaseException:
        return "its text cannot be printed"
