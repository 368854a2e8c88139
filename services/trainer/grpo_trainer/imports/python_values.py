"""The values of expressions in a script: literals, names, and what a few operations make of them. Nothing of it is run.

A value is known where every place that could change it is; whoever reads a script names what is not known.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .python_source import PythonSource, called, keywords

MAX_CHARACTERS = 2**16
"""Longest text that is made of others."""
MAX_BITS = 2**10
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_OF_TEXTS = ("split", "rsplit", "replace", "strip", "lower", "upper")
_TYPES: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}
_ENVIRONMENT = ("os.environ", "environ")
_SWITCHES = {"store_true": True, "store_false": False}


class UnknownValueError(Exception):
    """A value that only running the script would tell."""


@dataclass(frozen=True)
class Flag:
    """An argument of an ArgumentParser."""

    default: ast.expr | None
    action: str | None
    type: str | None
    """Name of what makes its value of a text; None: it is the text."""
    is_plain: bool
    """Whether it is optional, and takes one value."""


class Values:
    """`words`: arguments that the script is started with, empty for those without a value; `variables`: environment
    variables that are known. The script's defaults stand for all others.
    """

    def __init__(self, source: PythonSource, words: Mapping[str, str], variables: Mapping[str, str]):
        self.source, self.words, self.variables = source, words, variables
        self.flags = dict(filter(None, map(_flag, source.calls("add_argument"))))
        self.variables_read: set[str] = set()
        self._known: dict[str, Any] = {}
        self._on_the_way: list[str] = []
        """The names on the way to a value, of which none is its own."""
        self._stored = set(_variables_stored(source.tree))

    def of(self, node: ast.expr | None) -> Any:
        """Return the value of an expression. Raises UnknownValueError."""
        try:
            return self._bounded(self._value(node))
        except (ArithmeticError, TypeError, ValueError, LookupError, RecursionError) as error:
            raise UnknownValueError from error

    def _value(self, node: ast.expr | None) -> Any:
        match node:
            case ast.Constant(value=str() | int() | None):
                return node.value
            case ast.Constant(value=float(number)) if math.isfinite(number):
                return number
            case ast.List() | ast.Tuple():
                return [self.of(item) for item in node.elts]
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
                return {self.of(k): self.of(v) for k, v in zip(node.keys, node.values, strict=True)}
            case ast.JoinedStr():
                return "".join(str(self.of(part)) for part in node.values)
            case ast.FormattedValue(format_spec=None, conversion=-1):
                return self.of(node.value)
            case ast.UnaryOp(op=ast.USub()):
                return -self._number(node.operand)
            case ast.BinOp():
                return self._computed(node)
            case ast.BoolOp(op=ast.Or()):
                found = [self.of(part) for part in node.values]
                return next((value for value in found if value), found[-1])
            case ast.IfExp():
                return self.of(node.body if self._is_true(node.test) else node.orelse)
            case ast.Call(keywords=[]):
                return self._returned(node)
            case ast.Subscript():
                return self.of(node.value)[self.of(node.slice)]
            case ast.Attribute(value=ast.Name(id="torch")):
                return node.attr
            case ast.Attribute(value=ast.Name(id=name)) if name in self.source.parsed and node.attr in self.flags:
                return self._of_flag(node.attr)
            case ast.Name() | ast.Attribute():
                return self._of_name(ast.unparse(node))
        raise UnknownValueError

    @staticmethod
    def _bounded(value: Any) -> Any:
        too_long = isinstance(value, str) and len(value) > MAX_CHARACTERS
        if too_long or (isinstance(value, int) and value.bit_length() > MAX_BITS):
            raise UnknownValueError
        if isinstance(value, float) and not math.isfinite(value):
            raise UnknownValueError
        return value

    def _of_name(self, name: str) -> Any:
        if name not in self._known:
            bound = self.source.bound(name)
            if not bound or None in bound or name in self._on_the_way:
                raise UnknownValueError
            self._on_the_way.append(name)
            try:
                first, *others = [self.of(one) for one in bound]
            finally:
                self._on_the_way.pop()
            if any(other != first for other in others):
                raise UnknownValueError
            self._known[name] = first
        return self._known[name]

    def _of_flag(self, name: str) -> Any:
        """Return an argument as ArgumentParser does: the word that is given, or the default, in the argument's type."""
        flag, word = self.flags[name], self.words.get(name)
        if flag.action in _SWITCHES:
            if word:
                raise UnknownValueError
            default = not _SWITCHES[flag.action] if flag.default is None else self.of(flag.default)
            return default if word is None else _SWITCHES[flag.action]
        if not flag.is_plain or flag.action not in (None, "store"):
            if word is not None or flag.default is None:
                raise UnknownValueError
            return self.of(flag.default)
        value = word if word is not None else self.of(flag.default) if flag.default is not None else None
        if not isinstance(value, str) or flag.type in (None, "str"):
            return value
        if flag.type not in _TYPES:
            raise UnknownValueError
        return _TYPES[flag.type](value)

    def _number(self, node: ast.expr) -> Any:
        value = self.of(node)
        if type(value) not in (int, float):
            raise UnknownValueError
        return value

    def _computed(self, node: ast.BinOp) -> Any:
        compute = _ARITHMETIC.get(type(node.op))
        left, right = self.of(node.left), self.of(node.right)
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add)
        if compute is None or (not texts and not all(type(value) in (int, float) for value in (left, right))):
            raise UnknownValueError
        return compute(left, right)

    def _is_true(self, test: ast.expr) -> bool:
        match test:
            case ast.Compare(ops=[ast.Eq() | ast.Is()], comparators=[other]):
                return bool(self.of(test.left) == self.of(other))
            case ast.Compare(ops=[ast.NotEq() | ast.IsNot()], comparators=[other]):
                return bool(self.of(test.left) != self.of(other))
            case ast.UnaryOp(op=ast.Not()):
                return not self._is_true(test.operand)
        return bool(self.of(test))

    def _returned(self, call: ast.Call) -> Any:
        """Return what a few calls return: of the types of numbers and texts, of texts, of environment variables."""
        word = ast.unparse(call.func)
        if word in ("os.getenv", "getenv", *(f"{place}.get" for place in _ENVIRONMENT)):
            name, default = map(self.of, call.args)
            if name in self._stored:
                raise UnknownValueError
            self.variables_read.add(str(name))
            return self.variables.get(str(name), default)
        if word in _TYPES and len(call.args) == 1:
            return _TYPES[word](self.of(call.args[0]))
        if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TEXTS:
            text = self.of(call.func.value)
            if isinstance(text, str):
                return getattr(text, call.func.attr)(*map(self.of, call.args))
        raise UnknownValueError


def _flag(call: ast.Call) -> tuple[str, Flag] | None:
    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    given = keywords(call)
    name = next((name for name in names if name.startswith("--")), names[0] if names else "")
    if isinstance(dest := given.get("dest"), ast.Constant):
        name = str(dest.value)
    required = given.get("required")
    is_required = required is not None and getattr(required, "value", None) is not False
    is_optional = any(one.startswith("-") for one in names) and not is_required
    action, kind = given.get("action"), given.get("type")
    flag = Flag(
        given.get("default"),
        None if action is None else str(action.value) if isinstance(action, ast.Constant) else "unknown",
        None if kind is None else ast.unparse(kind),
        is_optional and "nargs" not in given,
    )
    found = name.lstrip("-").replace("-", "_")
    return (found, flag) if found else None


def _variables_stored(tree: ast.Module) -> Iterable[str]:
    """Yield the environment variables that a script sets itself: whether before it reads them is not decided."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        places = [one.slice for one in targets if isinstance(one, ast.Subscript)
                  and ast.unparse(one.value) in _ENVIRONMENT]  # fmt: skip
        if (
            isinstance(node, ast.Call)
            and called(node) == "setdefault"
            and ast.unparse(node.func).startswith(tuple(f"{place}." for place in _ENVIRONMENT))
        ):
            places += node.args[:1]
        yield from (str(place.value) for place in places if isinstance(place, ast.Constant))
