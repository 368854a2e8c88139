"""The values of expressions in a script: literals, names, and what a few operations make of them. Nothing of it is run.

A value is known where every place that could change it is; whoever reads a script names what is not known.
"""

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .python_settings import fields_of, file_of_module, place_of_settings, read_settings, types_of
from .python_source import PythonSource, called, keywords, python_source

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
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip
_TYPES: dict[str, Callable[[Any], Any]] = {
    "int": int, "float": float, "str": str, "Path": str, "bool": lambda value: str(value).lower() in ("true", "1", ""),
}  # fmt: skip
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
    """Whether it takes one value."""
    is_required: bool = False


class Values:
    """`words`: arguments that the script is started with, empty for those without a value; `variables`: environment
    variables that are known. The script's defaults stand for all others.
    """

    def __init__(self, source: PythonSource, folder: Path, words: Mapping[str, str], variables: Mapping[str, str]):
        self.source, self.folder, self.words, self.variables = source, folder, words, variables
        of_fields = dict(self._of_fields())
        self.flags = dict(filter(None, map(_flag, source.calls("add_argument")))) | of_fields
        self.configured = self._of_config() if of_fields else {}
        """Settings of the file behind `--config`, where TRL's parser reads it for classes of the script."""
        self.variables_read: set[str] = set()
        self.files_read: set[str] = set()
        """Files of settings, and modules beside the script."""
        self._modules: dict[str, Values | None] = {}
        self._decided: dict[int, bool | None] = {}
        source.decide = self._decide
        self._known: dict[str, Any] = {}
        self._on_the_way: list[str] = []
        """The names on the way to a value, of which none is its own."""
        self.stored = dict(_variables_stored(source.tree))
        """Environment variables that the script sets itself."""

    def _of_fields(self) -> Iterator[tuple[str, Flag]]:
        """Yield the flags that a parser makes of the script's dataclasses, where it reads none of TRL's."""
        for parser in [*self.source.calls("HfArgumentParser"), *self.source.calls("TrlParser")]:
            names = {part.id for part in ast.walk(parser) if isinstance(part, ast.Name)}
            if any(name.endswith("Config") and name not in self.source.classes for name in names):
                return
            for made in (self.source.classes[name] for name in names & self.source.classes.keys()):
                types = types_of(made)
                for name, default in fields_of(made).items():
                    yield name, Flag(default, None, types.get(name), is_plain=True, is_required=default is None)

    def _of_config(self) -> dict[str, Any]:
        if "config" not in self.words or "config" in self.flags or not self.source.calls("TrlParser"):
            return {}
        try:
            return read_settings(self.words["config"])
        except ValueError:
            return {}

    def _decide(self, test: ast.expr) -> bool | None:
        if id(test) not in self._decided:
            self._decided[id(test)] = None  # as long as it is being decided: it may ask for itself
            with suppress(UnknownValueError, ArithmeticError, TypeError, ValueError, LookupError, RecursionError):
                self._decided[id(test)] = self._is_true(test)
        return self._decided[id(test)]

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
            case ast.Call() if (place := place_of_settings(self.source, node)) is not None:
                file = str(self.of(place))
                self.files_read.add(file)
                return read_settings(file)
            case ast.Call(keywords=[]):
                return self._returned(node)
            case ast.Subscript():
                return self.of(node.value)[self.of(node.slice)]
            case ast.Attribute(value=ast.Name(id="torch")):
                return node.attr
            case ast.Attribute(value=ast.Name(id=name)) if name in self.source.parsed and node.attr in self.flags:
                return self._of_flag(node.attr)
            case ast.Attribute(value=ast.Name(id=name)) if not self.source.bound(ast.unparse(node)):
                return self._of_field(name, node.attr)
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
            module, _, attribute = self.source.imported.get(name, "").rpartition(".")
            if not bound and (other := self._module(module)) is not None:
                return other.of(ast.Name(attribute))
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

    def _of_field(self, name: str, field: str) -> Any:
        """Return `Config.field`, `config.field` of `config = Config(…)`, or what a module of the script's own has."""
        bound = self.source.bound(name)
        call = bound[0] if len(bound) == 1 and isinstance(bound[0], ast.Call) else None
        if call is None and bound:
            raise UnknownValueError
        if not bound and (other := self._module(self.source.imported.get(name, ""))) is not None:
            return other.of(ast.Name(field))
        holder, made = self._class(called(call) if call is not None else name)
        fields = fields_of(made)
        if call is not None and (given := keywords(call, *fields)).keys() & {field}:
            return self.of(given[field])
        if holder.source.bound(f"self.{field}") or (call is not None and any(one.arg is None for one in call.keywords)):
            raise UnknownValueError
        return holder.of(fields.get(field))

    def _class(self, name: str) -> "tuple[Values, ast.ClassDef]":
        if name in self.source.classes:
            return self, self.source.classes[name]
        module, _, named = self.source.imported.get(name, "").rpartition(".")
        if (other := self._module(module)) is None:
            raise UnknownValueError
        return other._class(named)

    def _module(self, module: str) -> "Values | None":
        """Return the values of another module of the script's own, which is read as it is."""
        if module not in self._modules:
            file = file_of_module(module, self.folder) if module else None
            self._modules[module] = None
            if file is not None:
                self._modules[module] = Values(python_source(file), file.parent, {}, self.variables)
                self.files_read.add(str(file))
        return self._modules[module]

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
        if word is None and name in self.configured:
            return self.configured[name]
        if word is None and flag.is_required:
            raise UnknownValueError
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
            case ast.Compare(ops=[ast.In()], comparators=[other]):
                return bool(self.of(test.left) in self.of(other))
            case ast.Compare(ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE() as order], comparators=[other]):
                return bool(_ORDER[type(order)](self._number(test.left), self._number(other)))
            case ast.UnaryOp(op=ast.Not()):
                return not self._is_true(test.operand)
            case ast.BoolOp(op=ast.And()):
                return all(map(self._is_true, test.values))
        return bool(self.of(test))

    def _returned(self, call: ast.Call) -> Any:
        """Return what a few calls return: of the types of numbers and texts, of texts, of environment variables."""
        word = ast.unparse(call.func)
        if word in ("os.getenv", "getenv", *(f"{place}.get" for place in _ENVIRONMENT)):
            name, default = map(self.of, call.args)
            if name in self.stored:
                raise UnknownValueError
            self.variables_read.add(str(name))
            return self.variables.get(str(name), default)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and 0 < len(call.args) < 3:
            held = self.of(call.func.value)
            if isinstance(held, dict):
                return held.get(*map(self.of, call.args))
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
    is_optional = any(one.startswith("-") for one in names)
    action, kind = given.get("action"), given.get("type")
    flag = Flag(
        given.get("default"),
        None if action is None else str(action.value) if isinstance(action, ast.Constant) else "unknown",
        None if kind is None else ast.unparse(kind),
        is_optional and "nargs" not in given,
        is_required,
    )
    found = name.lstrip("-").replace("-", "_")
    return (found, flag) if found else None


def _variables_stored(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the environment variables that a script sets itself: whether before it reads them is not decided."""
    for node in ast.walk(tree):
        stored: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            stored = [(target.slice, node.value) for target in node.targets
                      if isinstance(target, ast.Subscript) and ast.unparse(target.value) in _ENVIRONMENT]  # fmt: skip
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in [f"{one}.setdefault" for one in _ENVIRONMENT]:
            stored = [(node.args[0], node.args[1])] if len(node.args) == 2 else []
        yield from ((str(place.value), value) for place, value in stored if isinstance(place, ast.Constant))
