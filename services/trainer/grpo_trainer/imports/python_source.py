"""A Python script or a notebook as a syntax tree: what its names are bound to, and its values. Nothing of it is run."""

import ast
import json
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError

SUFFIXES = (".py", ".ipynb")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class UnknownValueError(Exception):
    """A value that only running the script would tell."""


def python_source(path: Path) -> "PythonSource":
    """Read a script, or the code of a notebook without its commands. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".ipynb":
            cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            lines = [line for cell in cells for line in [*"".join(cell["source"]).splitlines(), ""]]
            text = "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in lines)
        return PythonSource(ast.parse(text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no Python: {error}") from error


class PythonSource:
    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.bound: dict[str, list[ast.expr]] = defaultdict(list)
        """Name → what it is bound to, in the order of the text, wherever that is."""
        self.functions: dict[str, ast.FunctionDef] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        """Name → module, and the name there."""
        self.flags: dict[str, ast.expr] = {}
        """Argument of an ArgumentParser → its default."""
        self._resolved: list[str] = []
        """The names on the way to a value, of which none is its own."""
        for node in ast.walk(tree):
            self._take_in(node)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions, classes or methods whose name ends so."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and called(node).endswith(names):
                yield node

    def value(self, node: ast.expr | None) -> Any:
        """The value of literals, and of names that are bound to one value. Raises UnknownValueError for all else."""
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple():
                return [self.value(item) for item in node.elts]
            case ast.Dict():
                if None not in node.keys:
                    return {self.value(k): self.value(v) for k, v in zip(node.keys, node.values, strict=True)}
            case ast.JoinedStr():
                return "".join(str(self.value(part)) for part in node.values)
            case ast.FormattedValue(format_spec=None, conversion=-1):
                return self.value(node.value)
            case ast.UnaryOp(op=ast.USub()):
                return -self._number(node.operand)
            case ast.BinOp():
                return self._computed(node)
            case ast.Name(id=name) if self.bound[name] and name not in self._resolved:
                self._resolved.append(name)
                try:
                    first, *others = [self.value(bound) for bound in self.bound[name]]
                finally:
                    self._resolved.pop()
                if all(other == first for other in others):
                    return first
            case ast.Attribute(value=ast.Name(id="torch")):
                return node.attr
            case ast.Attribute() if node.attr in self.flags:
                return self.value(self.flags[node.attr])
        raise UnknownValueError

    def behind(self, node: ast.AST, seen: set[int] | None = None) -> Iterator[ast.Call]:
        """The calls that an expression is made by, each once: in it, behind its names, in functions of the script."""
        seen = set() if seen is None else seen
        for part in ast.walk(node):
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, ast.Name):
                for other in self.bound[part.id]:
                    yield from self.behind(other, seen)
            elif isinstance(part, ast.Call):
                yield part
                if (function := self.functions.get(called(part))) is not None:
                    yield from self.behind(function, seen)

    def _take_in(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
            case ast.AnnAssign(value=ast.expr() as value):
                self._bind(node.target, value)
            case ast.FunctionDef():
                self.functions[node.name] = node
            case ast.ImportFrom(module=str(module)):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (module, alias.name)
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*_, ast.Constant(value=str(flag))]):
                default = next((given.value for given in node.keywords if given.arg == "default"), None)
                if default is not None:
                    self.flags[flag.lstrip("-").replace("-", "_")] = default

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.bound[target.id].append(value)
        elif isinstance(target, ast.Tuple):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for i, name in enumerate(target.elts):
                self._bind(name, parts[i] if parts else value)

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnknownValueError
        return value

    def _computed(self, node: ast.BinOp) -> Any:
        compute = _ARITHMETIC.get(type(node.op))
        left, right = self.value(node.left), self.value(node.right)
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add)
        if compute is None or (not texts and not all(type(value) in (int, float) for value in (left, right))):
            raise UnknownValueError
        try:
            return compute(left, right)
        except ArithmeticError as error:
            raise UnknownValueError from error


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {given.arg: given.value for given in call.keywords if given.arg is not None}
