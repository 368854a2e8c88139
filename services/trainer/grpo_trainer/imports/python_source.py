"""A Python script or a notebook as a syntax tree: what its names are bound to, and its values. Nothing of it is run.

A value is known where every place that could change it is: a name that a loop, a parameter, `+=` or `.append()` binds
as well is unknown, and whoever reads a script names it.
"""

import ast
import json
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
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
_OF_TEXTS = ("split", "rsplit", "replace", "strip", "lower", "upper")
_TYPES: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")
_CHANGES = ("append", "extend", "insert", "update", "pop", "remove", "setdefault", "clear")
_HARMLESS_MAGIC = ("%%capture", "%%time", "%%timeit")
_MAGIC = re.compile(r"^([ \t]*)[!%](?:.*\\\n)*.*$", re.MULTILINE)
_CAUGHT = re.compile(r"=[ \t]*[!%].*$", re.MULTILINE)
"""`files = !ls`: what a shell says goes into a name."""


class UnknownValueError(Exception):
    """A value that only running the script would tell."""


def python_source(path: Path) -> "PythonSource":
    """Read a script, or the code of a notebook without its commands. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return PythonSource(ast.parse(_code(json.loads(text)) if path.suffix == ".ipynb" else text))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is no Python: {error}") from error


def _code(notebook: dict[str, Any]) -> str:
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return "\n".join(map(_plain, cells))


def _plain(cell: str) -> str:
    """Return the Python of a cell: what IPython alone reads becomes `pass`, or goes with its cell."""
    first = cell.lstrip().split(None, 1)[0] if cell.strip() else ""
    if first.startswith("%%"):
        if first not in _HARMLESS_MAGIC:  # %%bash, %%writefile
            return ""
        cell = cell.lstrip().partition("\n")[2]
    try:
        ast.parse(cell)
    except SyntaxError:
        return _CAUGHT.sub("= None", _MAGIC.sub(r"\1pass", cell))
    return cell


class PythonSource:
    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.ends_at = math.inf
        """Line behind which nothing is read: who uses the names stands there."""
        self._bound: dict[str, list[tuple[int, ast.expr | None]]] = defaultdict(list)
        self.imported: dict[str, str] = {}
        """Name → `module.name` that it stands for."""
        self.flags: dict[str, ast.expr] = {}
        """Argument of an ArgumentParser → its default."""
        self.parsed: set[str] = set()
        """Names of what a parser of arguments has returned."""
        self.bases: dict[str, list[str]] = {}
        """Class of the script → what it is derived of."""
        self.environment: Mapping[str, str] = {}
        """Environment variables that are known; the script's defaults stand for the others."""
        self.variables: set[str] = set()
        """Environment variables that were read."""
        self._on_the_way: list[str] = []
        """The names on the way to a value, of which none is its own."""
        in_classes = {id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body}
        fields = ast.Assign | ast.AnnAssign
        nodes = [node for node in ast.walk(tree) if not (id(node) in in_classes and isinstance(node, fields))]
        for node in sorted(nodes, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))):
            self._take_in(node)
        made = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = Counter(node.name for node in made)
        self.functions = {node.name: node for node in made if names[node.name] == 1}
        """Functions whose name no other has, wherever they are."""
        self.importable = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        """Functions of the module, which another file can import."""
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        """Classes of the module, likewise."""

    def bound(self, name: str) -> list[ast.expr | None]:
        """Return what a name, or `name.attribute`, is bound to, in the order of the text; None for what is not known.

        Where something stands before `ends_at`, it is that alone.
        """
        found = self._bound.get(name, [])
        return [node for line, node in found if line < self.ends_at] or [node for _, node in found]

    def attributes_of(self, name: str) -> dict[str, ast.expr]:
        """Return what the attributes of a name are set to last, where that is known; of any name for an empty one."""
        owned = {stored: stored.rpartition(".") for stored in self._bound if "." in stored}
        last = {attribute: self.bound(stored)[-1] for stored, (owner, _, attribute) in owned.items()
                if owner == name or not name}  # fmt: skip
        return {attribute: node for attribute, node in last.items() if node is not None}

    def calls(self, name: str) -> list[ast.Call]:
        """Return the calls of what is called `name`, of classes that are derived of it, and of those named alike."""
        return [
            node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and self.means(node, name, alike=True)
        ]

    def means(self, call: ast.Call, name: str, *, alike: bool = False) -> bool:
        """Return whether a call is of `name`: itself, by another name, or a class of the script that is derived of it;
        `alike`: or of something whose name ends so."""
        word = called(call)
        words = {word, self.imported.get(word, "").rpartition(".")[2], *self.bases.get(word, ())}
        return any(one == name or one.endswith(f".{name}") or (alike and one.endswith(name)) for one in words)

    def value(self, node: ast.expr | None) -> Any:
        """Return the value of literals, and of names that are bound to one. Raises UnknownValueError for all else."""
        match node:
            case ast.Constant(value=str() | int() | None):
                return node.value
            case ast.Constant(value=float(number)) if math.isfinite(number):
                return number
            case ast.List() | ast.Tuple():
                return [self.value(item) for item in node.elts]
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
                return {self.value(k): self.value(v) for k, v in zip(node.keys, node.values, strict=True)}
            case ast.JoinedStr():
                return "".join(str(self.value(part)) for part in node.values)
            case ast.FormattedValue(format_spec=None, conversion=-1):
                return self.value(node.value)
            case ast.UnaryOp(op=ast.USub()):
                return -self._number(node.operand)
            case ast.BinOp():
                return self._computed(node)
            case ast.BoolOp(op=ast.Or()):
                found = [self.value(part) for part in node.values]
                return next((value for value in found if value), found[-1])
            case ast.IfExp():
                return self.value(node.body if self._is_true(node.test) else node.orelse)
            case ast.Call(keywords=[]):
                return self._returned(node)
            case ast.Subscript():
                return self._part(self.value(node.value), self.value(node.slice))
            case ast.Attribute(value=ast.Name(id="torch")):
                return node.attr
            case ast.Attribute(value=ast.Name(id=name)) if name in self.parsed and node.attr in self.flags:
                return self.value(self.flags[node.attr])
            case ast.Name() | ast.Attribute():
                return self._of_name(ast.unparse(node))
        raise UnknownValueError

    def latest(self, node: ast.expr) -> list[ast.expr]:
        """Return what a name was last bound to, and before, as long as each is made of the one before it.

        Of `data = load(); data = data.map(f)` it is both, the last one first. Any other expression is itself.
        """
        name = ast.unparse(node)
        if not isinstance(node, ast.Name | ast.Attribute) or name not in self._bound:
            return [node]
        found: list[ast.expr] = []
        for bound in reversed(self.bound(name)):
            if bound is not None:
                found.append(bound)
                if not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(bound)):
                    break
        return found

    def behind(
        self, node: ast.AST, seen: set[int] | None = None, hidden: frozenset[str] = frozenset()
    ) -> Iterator[ast.AST]:
        """Yield the parts that an expression is made of, once each: in it, behind names, in functions of the script.

        `hidden` are the parameters of the function around it, which are no names of the module.
        """
        seen = set() if seen is None else seen
        for part in ast.walk(node):
            if id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) not in hidden:
                for other in self.latest(part) if ast.unparse(part) in self._bound else ():
                    yield from self.behind(other, seen)
            elif isinstance(part, ast.Call) and (function := self.functions.get(called(part))) is not None:
                yield from self.behind(function, seen, frozenset(_parameters(function)))

    def calls_behind(self, node: ast.expr, *names: str) -> list[ast.Call]:
        """Return the calls of `names` that an expression is made by, in the order in which it was made last."""
        return [
            part for part in self.behind(node) if isinstance(part, ast.Call) and any(self.means(part, n) for n in names)
        ]

    def _take_in(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._bind(target, node.value)
            case ast.AnnAssign(value=ast.expr() as value):
                self._bind(node.target, value)
            case ast.NamedExpr():
                self._bind(node.target, node.value)
            case ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind(node.target, None)
            case ast.withitem(optional_vars=ast.expr() as target):
                self._bind(target, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for name in _parameters(node):
                    self._bound[name].append((node.lineno, None))
            case ast.ClassDef():
                self.bases[node.name] = [ast.unparse(base) for base in node.bases]
            case ast.ImportFrom(module=str(module)):
                self.imported |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
            case ast.Import():
                self.imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                self._take_flag(node)
            case ast.Call(func=ast.Attribute(attr=change, value=ast.Name(id=name))) if change in _CHANGES:
                self._bound[name].append((node.lineno, None))

    def _take_flag(self, call: ast.Call) -> None:
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        given = keywords(call)
        name = next((name for name in names if name.startswith("--")), names[0] if names else "")
        if isinstance(dest := given.get("dest"), ast.Constant):
            name = str(dest.value)
        if "default" in given:
            self.flags[name.lstrip("-").replace("-", "_")] = given["default"]

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            self._bound[ast.unparse(target)].append((target.lineno, value))
            if isinstance(value, ast.Call) and called(value).startswith("parse_"):
                self.parsed.add(ast.unparse(target))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._bound[target.value.id].append((target.lineno, None))  # settings["beta"] = …
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            is_parted = len(parts) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in target.elts)
            # `model, tokenizer = load(…)` and `script, args = parser.parse_…()`: what is called made all of them.
            whole = value if isinstance(value, ast.Call | ast.Subscript) else None
            for i, name in enumerate(target.elts):
                self._bind(name, parts[i] if is_parted else whole)

    def _of_name(self, name: str) -> Any:
        bound = self.bound(name)
        if not bound or None in bound or name in self._on_the_way:
            raise UnknownValueError
        self._on_the_way.append(name)
        try:
            first, *others = [self.value(one) for one in bound]
        finally:
            self._on_the_way.pop()
        if any(other != first for other in others):
            raise UnknownValueError
        return first

    def _is_true(self, test: ast.expr) -> bool:
        match test:
            case ast.Compare(ops=[ast.Eq() | ast.Is()], comparators=[other]):
                return bool(self.value(test.left) == self.value(other))
            case ast.Compare(ops=[ast.NotEq() | ast.IsNot()], comparators=[other]):
                return bool(self.value(test.left) != self.value(other))
            case ast.UnaryOp(op=ast.Not()):
                return not self._is_true(test.operand)
        return bool(self.value(test))

    def _returned(self, call: ast.Call) -> Any:
        """Return what a few calls return: of the types of numbers and texts, of texts, of environment variables."""
        try:
            if (word := ast.unparse(call.func)) in _ENVIRONMENT:
                name, default = map(self.value, call.args)
                self.variables.add(str(name))
                return self.environment.get(str(name), default)
            if word in _TYPES and len(call.args) == 1:
                return _TYPES[word](self.value(call.args[0]))
            if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TEXTS:
                text = self.value(call.func.value)
                return getattr(str(text), call.func.attr)(*map(self.value, call.args))
        except (TypeError, ValueError) as error:
            raise UnknownValueError from error
        raise UnknownValueError

    @staticmethod
    def _part(whole: Any, place: Any) -> Any:
        try:
            return whole[place]
        except (TypeError, LookupError) as error:
            raise UnknownValueError from error

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if type(value) not in (int, float):
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
    """Return the last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def keywords(call: ast.Call, *positions: str) -> dict[str, ast.expr]:
    """Return the arguments of a call by name; those without have the names of `positions`."""
    return dict(zip(positions, call.args, strict=False)) | {
        given.arg: given.value for given in call.keywords if given.arg is not None
    }


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    return [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs) if arg.arg != "self"]
