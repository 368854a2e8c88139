"""A script or notebook that starts ms-swift by `RLHFArguments`, as the command that says the same. It is not run."""

import ast
import json
from pathlib import Path
from typing import Any

from .python_source import PythonSource, keywords, python_source
from .python_values import UnknownValueError, Values
from .script_reader import short
from .shell_words import Command, Script


def read_swift_script(path: Path, words: list[str]) -> Script:
    """Read the options that `RLHFArguments` gets; `words` are options that stand behind the file, and count more.

    Raises UsageError for no such call, and for several.
    """
    source = python_source(path)
    call, script = source.only_call("RLHFArguments", of=path, command="swift rlhf"), Script()
    values = Values(source, path.parent, {}, {})
    given = keywords(call) | _set_later(source, call)
    command = ["swift", "rlhf"]
    for option, node in given.items():
        if f"--{option}" in words:
            continue
        try:
            command += _as_words(option, values.of(node))
        except UnknownValueError:
            script.remark(f"{option} is {short(node)}: the script computes it; give --{option} … behind the file")
    if any(one.arg is None for one in call.keywords):
        script.remark("RLHFArguments gets more by **, which is not read")
    variables: dict[str, str] = {}
    for name, node in values.stored.items():
        try:
            variables[name] = str(values.of(node))
        except UnknownValueError:
            script.remark(f"{name} is {short(node)}: the script computes it")
    script.commands.append(Command(variables, [*command, *words]))
    return script


def _set_later(source: PythonSource, call: ast.Call) -> dict[str, ast.expr]:
    """Return what is set on the arguments afterwards: `args.beta = 0.1`."""
    made = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign) and node.value is call]
    found = source.attributes_of(ast.unparse(made[0].targets[0])) if made else {}
    return {name: value for name, value in found.items() if value is not None}


def _as_words(option: str, value: Any) -> list[str]:
    if value is None or value == []:
        return []
    if isinstance(value, list):
        return [f"--{option}", *map(_as_word, value)]
    return [f"--{option}", _as_word(value)]


def _as_word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)
