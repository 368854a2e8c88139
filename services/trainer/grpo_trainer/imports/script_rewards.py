"""Read the rewards that a script gives to `GRPOTrainer`: functions of its own, of other files and of TRL, a model."""

import ast
from pathlib import Path
from typing import Any

from .python_source import called, python_source
from .python_values import UnknownValueError
from .script_reader import Reader, short


def read_rewards(reader: Reader) -> None:
    if "reward_weights" in reader.given:  # of earlier versions
        reader.set("reward_weights", reader.given["reward_weights"], "reward_weights is")
    given = reader.given.get("reward_funcs")
    if given is None or reader.is_parsed(given):
        return
    nodes = reader.elements(given, "reward_funcs")
    given = reader.single(given)
    if isinstance(given, ast.Call) and reader.parses and called(given) not in reader.source.importable:
        return
    models: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    of_states: list[tuple[int, str]] = []
    for i, node in enumerate(nodes):
        if (model := _model(reader, node)) is not None:
            models.append((i, model))
        elif (name := _function(reader, node)) is not None:
            (of_states if _reads_environments(reader, node, name) else functions).append((i, name))
        else:
            reader.found.remark(
                f"reward {short(node)} is no function that a file has by a name{_way_out(reader, node)}"
            )
    if models:
        names = [model for _, model in models]
        reader.found.options["reward_model_name_or_path"] = names if len(names) > 1 else names[0]
    if functions:
        reader.found.options["reward_funcs"] = [name for _, name in functions]
    weights = reader.found.options.pop("reward_weights", None)
    if weights is not None and (not isinstance(weights, list) or len(weights) != len(nodes)):
        reader.found.remark("reward_weights are not as many as the rewards that are read: write them into the run file")
        weights = None
    _set_of_states(reader, of_states, weights)
    order = [i for i, _ in models + functions]  # ours
    if weights is not None and order:
        reader.found.options["reward_weights"] = [weights[i] for i in order]
    reader.say_where([name for _, name in functions], "the reward server")


def _way_out(reader: Reader, node: ast.expr) -> str:
    """Say what to do about a reward that is left out."""
    made = reader.single(node)
    if isinstance(made, ast.Lambda):
        return ": it is left out; write it as a function of a file"
    if isinstance(made, ast.Call):
        return (
            f": {called(made)} is called when the script runs; it is left out; write NAME = {short(made)} at the top "
            "level of a file, name FILE.py:NAME in reward.reward_funcs, and serve it by --plugin FILE.py:NAME"
        )
    return ": it is left out"


def _model(reader: Reader, node: ast.expr) -> str | None:
    """Return the name of a reward model: a text, or what `from_pretrained` is given."""
    made = reader.single(node)
    if isinstance(made, ast.Call) and called(made) == "from_pretrained" and made.args:
        made = made.args[0]
    elif made is not node and not isinstance(made, ast.Constant):
        return None
    try:
        text = reader.values.of(made)
    except UnknownValueError:
        return None
    return text if isinstance(text, str) else None


def _set_of_states(reader: Reader, found: list[tuple[int, str]], weights: list[Any] | None) -> None:
    """Write the rewards that are computed beside the environment, and their weights."""
    if not found:
        return
    names = [name for _, name in found]
    reader.found.episodes["reward_funcs"] = names
    reader.say_where(names, "the trainer")
    reader.found.remark(
        f"computed for one episode at a time, and not for a whole batch: {', '.join(map(_last, names))}"
    )
    if weights is not None:
        reader.found.episodes["reward_weights"] = {_last(name): weights[i] for i, name in found}


def _last(name: str) -> str:
    return name.rpartition(":")[2]


def _reads_environments(reader: Reader, node: ast.expr, name: str) -> bool:
    """Return whether a function `FILE.py:NAME` takes TRL's `environments`; without an environment none does."""
    file, _, function = name.rpartition(":")
    if not reader.found.episodes.get("environment_factory") or not file:
        return False
    source = reader.source if Path(file) == reader.script else python_source(Path(file))
    made = source.importable.get(function)
    parts = list(ast.walk(made)) if made is not None else []
    reads = any(
        (isinstance(part, ast.arg) and part.arg == "environments")
        or (isinstance(part, ast.Constant) and part.value == "environments")
        for part in parts
    )
    rest = made.args.kwarg if made is not None else None
    if reads and isinstance(node, ast.Call):
        reader.found.remark(
            f"reward {short(node)}: episodes.reward_funcs have no arguments; write a function of its own"
        )
    elif not reads and rest and any(isinstance(part, ast.Name) and part.id == rest.arg for part in parts):
        reader.found.remark(
            f"{function} passes its {rest.arg} on: where they are read for environments, it belongs into "
            "episodes.reward_funcs"
        )
    return reads


def _function(reader: Reader, node: ast.expr) -> str | None:
    """Return `FILE.py:NAME` of the script's own, `module.NAME` of another file's, or the name of one of TRL's."""
    source = reader.source
    if isinstance(node, ast.Call) and called(node) == "partial" and node.args:
        reader.found.remark(f"reward {short(node)}: its arguments are reward.params")
        return _function(reader, node.args[0])
    if isinstance(node, ast.Call) and source.imported.get(called(node), "").startswith("trl."):
        reader.found.remark(f"reward {short(node)}: its arguments are not read; they are reward.params")
        return called(node)
    if isinstance(node, ast.Name) and source.is_one_thing(node.id):
        if node.id in source.importable or source.makes_at_import(node.id):
            return f"{reader.script}:{node.id}"
        return _of_module(reader, *source.imported.get(node.id, "").rpartition(".")[::2])
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and source.imported.get(node.value.id):
        return _of_module(reader, source.imported[node.value.id], node.attr)
    return None


def _of_module(reader: Reader, module: str, function: str) -> str | None:
    """Return a function of another file, `FILE.py:NAME` where that is here; None where the file has none so named."""
    if not module or module == "trl" or module.startswith("trl."):
        return function if module else None
    if (file := reader.file_of(module)) is None:
        return f"{module}.{function}"
    return f"{file}:{function}" if python_source(file).is_one_thing(function) else None
