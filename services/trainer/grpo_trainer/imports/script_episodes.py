"""Read what plays an episode of a script: the tools, the environments, and the rewards that read their state."""

import ast
from pathlib import Path
from typing import Any

from .options import Options
from .python_source import python_source
from .python_values import UnknownValueError
from .run_file import RunFile
from .script_reader import Reader, TrlScript, is_none, short

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_REMEDY = "give it a name in a file, and write it into episodes.{setting}, FILE.py:NAME (docs/episodes.md)"


def read_episodes(reader: Reader) -> None:
    factory, tools = reader.given.get("environment_factory"), reader.given.get("tools")
    found: dict[str, Any] = reader.found.episodes
    if factory is not None and (classes := _factories(reader, factory)):
        found["environment_factory"] = classes
        reader.found.environment_pays = any(_pays(reader, name) for name in _names(classes))
    for node in reader.elements(tools, "tools") if tools is not None else ():
        if (name := _of_a_file(reader, node, "tools")) is not None:
            found.setdefault("tools", []).append(name)
    own = [name for named in found.values() for name in _names(named)]
    reader.say_where(own, "the trainer")
    for name in sorted({name.rpartition(":")[2] for name in own} & reader.source.classes.keys()):
        _state(reader, name)


def set_episodes(said: TrlScript, options: Options, run: RunFile) -> None:
    """Write the section `episodes`, where a script plays some."""
    if not said.episodes:
        return
    for setting, value in said.episodes.items():
        run.set(f"episodes.{setting}", value, f"{setting} of GRPOTrainer")
    rounds = options.whole("max_tool_calling_iterations")
    if rounds is not None:
        run.set(
            "episodes.max_turns",
            rounds + 1,
            f"{options.shown('max_tool_calling_iterations')}, and an answer, whose calls are made",
        )
    else:
        run.differs.append(
            f"max_tool_calling_iterations is not given: TRL has no limit, and an episode here has at most "
            f"{run.value('episodes.max_turns')} turns (episodes.max_turns)"
        )
    run.differs.append(
        "max_completion_length limits the sampled tokens of an episode; TRL counts those of the tools' answers, too"
    )


def _factories(reader: Reader, node: ast.expr) -> str | dict[str, str] | None:
    node = reader.single(node)
    if is_none(node):
        return None
    if not isinstance(node, ast.Dict):
        return _of_a_file(reader, node, "environment_factory")
    classes = {}
    for key, value in zip(node.keys, node.values, strict=True):
        name = _of_a_file(reader, value, "environment_factory")
        try:
            chosen = reader.values.of(key)
        except UnknownValueError:
            chosen = None
        if not isinstance(chosen, str):
            what = short(key) if key is not None else f"**{short(value)}"
            reader.found.remark(f"environment_factory has {what}, which is no text: name it in episodes")
        elif name is not None:
            classes[chosen] = name
    return classes


def _of_a_file(reader: Reader, node: ast.expr, setting: str) -> str | None:
    """Return `FILE.py:NAME` of a function or class; None, and a remark, for what no file has by a name."""
    source = reader.source
    if isinstance(node, ast.Name) and source.is_one_thing(node.id):
        if node.id not in source.imported:
            return f"{reader.script}:{node.id}"
        module, _, name = source.imported[node.id].rpartition(".")
        if (file := reader.file_of(module)) is not None:
            return f"{file}:{name}"
        reader.found.remark(f"{setting}: {node.id} is of {module}, and there is no such file here: write its path")
        return f"{module.lstrip('.').replace('.', '/')}.py:{name}"
    if isinstance(node, ast.Name) and node.id in source.bases | source.functions and not any(source.bound(node.id)):
        reader.found.remark(f"{setting}: {node.id} is made inside a function: move it out, so that it can be imported")
        return f"{reader.script}:{node.id}"
    reader.found.remark(f"{setting} of GRPOTrainer has {short(node)}: {_REMEDY.format(setting=setting)}")
    return None


def _pays(reader: Reader, name: str) -> bool:
    """Return whether an environment may have a reward of its own: a class that can be seen needs `get_reward`."""
    file, _, attribute = name.rpartition(":")
    source = (
        reader.source if file == str(reader.script) else python_source(Path(file)) if Path(file).is_file() else None
    )
    made = source.classes.get(attribute) if source is not None else None
    own = [part.name for part in made.body if isinstance(part, _FUNCTIONS)] if made is not None else []
    return made is None or bool(made.bases) or "get_reward" in own


def _names(named: str | list[str] | dict[str, str]) -> list[str]:
    return [named] if isinstance(named, str) else [*named.values()] if isinstance(named, dict) else named


def _state(reader: Reader, name: str) -> None:
    """Name what a class gets only when the script is started: whoever imports the file does without."""
    used = {part.id for part in ast.walk(reader.source.classes[name]) if isinstance(part, ast.Name)}
    for part in reader.source.tree.body:
        if reader.runs_at_import(part) or isinstance(part, ast.ClassDef):
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.Global):
                places = sorted(used & set(node.names))
            elif isinstance(node, ast.Assign):
                places = [ast.unparse(one) for one in node.targets if ast.unparse(one).startswith(f"{name}.")]
            else:
                continue
            for place in places:
                reader.found.remark(
                    f"{place} is set in line {node.lineno}, which an import of {reader.script} does not run: set it "
                    "in the class"
                )
