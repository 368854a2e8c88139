"""Read the rewards that a script gives to `GRPOTrainer`: functions of its own, of other files and of TRL, a model."""

import ast
from pathlib import Path
from typing import Any

from .python_source import called, python_source
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
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and not models:
            models.append((i, text))
        elif (name := _function(reader, node)) is not None:
            (of_states if _reads_environments(reader, name) else functions).append((i, name))
        else:
            reader.found.remark(f"reward {short(node)} is no function that a file has by a name: it is left out")
    if models:
        reader.found.options["reward_model_name_or_path"] = models[0][1]
    if functions:
        reader.found.options["reward_funcs"] = [name for _, name in functions]
    weights = reader.found.options.get("reward_weights")
    _set_of_states(reader, of_states, weights)
    order = [i for i, _ in models + functions]
    if isinstance(weights, list) and order:  # in our order, and of those that are there
        reader.found.options["reward_weights"] = [weights[i] for i in order if i < len(weights)]
    elif of_states:
        reader.found.options.pop("reward_weights", None)
    reader.say_where([name for _, name in functions], "the reward server")


def _set_of_states(reader: Reader, found: list[tuple[int, str]], weights: Any) -> None:
    """Write the rewards that are computed beside the environment, and their weights."""
    if not found:
        return
    reader.found.episodes["reward_funcs"] = [name for _, name in found]
    reader.say_where([name for _, name in found], "the trainer")
    if isinstance(weights, list):
        own = {name.rpartition(":")[2]: weights[i] for i, name in found if i < len(weights)}
        reader.found.episodes["reward_weights"] = own


def _reads_environments(reader: Reader, name: str) -> bool:
    """Return whether a function `FILE.py:NAME` takes TRL's `environments`; without an environment none does."""
    file, _, function = name.rpartition(":")
    if not reader.found.episodes.get("environment_factory") or not file:
        return False
    source = reader.source if Path(file) == reader.script else python_source(Path(file))
    parts = ast.walk(source.functions[function]) if function in source.functions else ()
    return any(
        (isinstance(part, ast.arg) and part.arg == "environments")
        or (isinstance(part, ast.Constant) and part.value == "environments")
        for part in parts
    )


def _function(reader: Reader, node: ast.expr) -> str | None:
    """Return `FILE.py:NAME` of the script's own, `module.NAME` of another file's, or the name of one of TRL's."""
    source = reader.source
    if isinstance(node, ast.Call) and called(node) == "partial" and node.args:
        reader.found.remark(f"reward {short(node)}: its arguments are reward.params")
        return _function(reader, node.args[0])
    if isinstance(node, ast.Call) and source.imported.get(called(node), "").startswith("trl."):
        reader.found.remark(f"reward {short(node)}: its arguments are not read; they are reward.params")
        return called(node)
    if isinstance(node, ast.Name) and node.id in source.importable:
        return f"{reader.script}:{node.id}"
    if isinstance(node, ast.Name) and "." in source.imported.get(node.id, ""):
        there = source.imported[node.id]
        module, _, function = there.rpartition(".")
        if (file := reader.file_of(module)) is not None:
            return f"{file}:{function}"
        return there.rpartition(".")[2] if there.startswith("trl.") else there
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in source.imported:
        return f"{source.imported[node.value.id]}.{node.attr}"
    return None
