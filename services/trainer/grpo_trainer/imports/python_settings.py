"""Where a script has its settings: fields of a class, a file in YAML or JSON. Nothing of it is run."""

import ast
import json
from pathlib import Path
from typing import Any

import yaml

from .python_source import PythonSource, called, keywords

_LOADERS = ("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads", "OmegaConf.load")
_OPENS = ("open", "read_text")


def file_of_module(module: str, folder: Path) -> Path | None:
    """Return the file of a module that lies beside a script in `folder`, or here."""
    file = Path(f"{module.lstrip('.').replace('.', '/')}.py")
    places = [folder / file] if module.startswith(".") else [folder / file, file]
    return next((found for found in places if found.is_file()), None)


def fields_of(made: ast.ClassDef) -> dict[str, ast.expr | None]:
    """Return the fields of a class and their defaults, in their order; None for one without."""
    found: dict[str, ast.expr | None] = {}
    for part in made.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found[part.target.id] = _default(part.value)
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            found[part.targets[0].id] = _default(part.value)
    return found


def _default(value: ast.expr | None) -> ast.expr | None:
    """Return the default that `field(default=…)` or `field(default_factory=lambda: …)` gives."""
    if not isinstance(value, ast.Call) or called(value) not in ("field", "Field"):
        return value
    given = keywords(value, *(("default",) if called(value) == "Field" else ()))
    made = given.get("default_factory")
    if isinstance(made, ast.Lambda):
        return made.body
    return ast.List([]) if made is not None and ast.unparse(made) == "list" else given.get("default")


def types_of(made: ast.ClassDef) -> dict[str, str]:
    """Return the type of each field, without what says that it may be None."""
    parts = [part for part in made.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
    return {
        ast.unparse(part.target): ast.unparse(part.annotation).removeprefix("Optional[").removesuffix("]")
        .removesuffix(" | None") for part in parts
    }  # fmt: skip


def place_of_settings(source: PythonSource, call: ast.Call) -> ast.expr | None:
    """Return the name of the file whose content a call returns, as an expression. None: it returns something else."""
    if ast.unparse(call.func) in _LOADERS and call.args:
        return _opened(source, call.args[0])
    function = source.functions.get(called(call))
    given = [*call.args, *(one.value for one in call.keywords)]
    if function is None or len(given) != 1:
        return None
    loads = [part for part in ast.walk(function) if isinstance(part, ast.Call) and ast.unparse(part.func) in _LOADERS]
    return given[0] if len(loads) == 1 else None


def _opened(source: PythonSource, node: ast.expr) -> ast.expr | None:
    """Return the file that is opened, or that a name is opened as."""
    if isinstance(node, ast.Name):
        items = [item for part in ast.walk(source.tree) if isinstance(part, ast.With) for item in part.items]
        opened = [item.context_expr for item in items if ast.unparse(item.optional_vars or node) == node.id]
        return _opened(source, opened[0]) if len(opened) == 1 and not isinstance(opened[0], ast.Name) else None
    if isinstance(node, ast.Call) and called(node) in _OPENS:
        is_method = isinstance(node.func, ast.Attribute)
        return node.func.value if isinstance(node.func, ast.Attribute) and is_method else next(iter(node.args), None)
    return node if isinstance(node, ast.Constant | ast.Attribute) else None


def read_settings(place: str) -> dict[str, Any]:
    """Read a file of settings. Raises ValueError where it is none."""
    try:
        text = Path(place).read_text(encoding="utf-8")
        found = json.loads(text) if place.endswith(".json") else yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(place) from error
    if not isinstance(found, dict):
        raise ValueError(place)
    return found
