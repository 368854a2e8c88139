"""Read the rewards that a script gives to `GRPOTrainer`: functions of its own, of other files and of TRL, a model."""

import ast

from .python_source import called
from .script_reader import Reader, short


def read_rewards(reader: Reader) -> None:
    if "reward_weights" in reader.given:  # of earlier versions
        reader.set("reward_weights", reader.given["reward_weights"], "reward_weights is")
    given = reader.given.get("reward_funcs")
    if given is None or reader.is_parsed(given):
        return
    if isinstance(given, ast.Name) and (bound := reader.source.bound(given.id)):
        if len(bound) != 1 or bound[0] is None:
            reader.found.remark(f"reward_funcs is {given.id}, which the script makes in several places: name them")
            return
        given = bound[0]
    if isinstance(given, ast.Call) and reader.parses and called(given) not in reader.source.importable:
        return
    models: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for i, node in enumerate(given.elts if isinstance(given, ast.List | ast.Tuple) else [given]):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and not models:
            models.append((i, text))
        elif (name := _function(reader, node)) is not None:
            functions.append((i, name))
        else:
            reader.found.remark(f"reward {short(node)} is no function that a file has by a name: it is left out")
    if models:
        reader.found.options["reward_model_name_or_path"] = models[0][1]
    if functions:
        reader.found.options["reward_funcs"] = [name for _, name in functions]
    weights = reader.found.options.get("reward_weights")
    if isinstance(weights, list):  # in our order, and of those that are there
        order = [i for i, _ in models + functions]
        reader.found.options["reward_weights"] = [weights[i] for i in order if i < len(weights)]
    own = [name.rpartition(":")[2] for _, name in functions if name.startswith(f"{reader.path.with_suffix('.py')}:")]
    if own:
        _say_where(reader, own)


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
        return f"{reader.path.with_suffix('.py')}:{node.id}"
    if isinstance(node, ast.Name) and "." in source.imported.get(node.id, ""):
        there = source.imported[node.id]
        return there.rpartition(".")[2] if there.startswith("trl.") else there
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in source.imported:
        return f"{source.imported[node.value.id]}.{node.attr}"
    return None


def _say_where(reader: Reader, own: list[str]) -> None:
    """Say what to do about a file that the reward server cannot import, or that would train there."""
    names, script = ", ".join(own), reader.path.with_suffix(".py")
    if reader.path.suffix != ".py":
        reader.found.remark(f"write {names} into {script}, for the reward server")
    elif any(reader.trainer in ast.walk(part) for part in reader.source.tree.body if _runs_at_import(part)):
        reader.found.remark(
            f"the reward server imports {script}, which would train there: put {names} into a file of their own, or "
            'the training under `if __name__ == "__main__":`'
        )


def _runs_at_import(part: ast.stmt) -> bool:
    if isinstance(part, ast.If) and "__name__" in ast.unparse(part.test):
        return False
    return not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
