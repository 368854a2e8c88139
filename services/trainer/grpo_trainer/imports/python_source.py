"""A Python script or a notebook as a syntax tree: what its names are bound to. Nothing of it is run.

What a name stands for is known where every place that could change it is: of a name that a loop, a parameter, `+=` or
`.append()` binds as well it is unknown.
"""

import ast
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError

SUFFIXES = (".py", ".ipynb")
_CHANGES = ("append", "extend", "insert", "update", "pop", "remove", "setdefault", "clear")
_HARMLESS_MAGIC = ("%%capture", "%%time", "%%timeit")
_MAGIC = re.compile(r"^([ \t]*)[!%](?:.*\\\n)*.*$", re.MULTILINE)
_CAUGHT = re.compile(r"=[ \t]*[!%].*$", re.MULTILINE)
"""`files = !ls`: what a shell says goes into a name."""


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
        """Name → `module.name` that it stands for; empty for one that is imported from several places."""
        self.parsed: set[str] = set()
        """Names of what a parser of arguments has returned."""
        self.bases: dict[str, list[str]] = {}
        """Class of the script → what it is derived of."""
        in_classes = {id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body}
        fields = ast.Assign | ast.AnnAssign
        nodes = [node for node in ast.walk(tree) if not (id(node) in in_classes and isinstance(node, fields))]
        for node in sorted(nodes, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))):
            self._take_in(node)
        made = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        names = Counter(node.name for node in made)
        self.functions = {node.name: node for node in made if names[node.name] == 1}
        """Functions whose name no other has, wherever they are."""
        self.importable = {
            node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        """Functions of the module, which another file can import."""
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        """Classes of the module, likewise."""
        self.decide: Callable[[ast.expr], bool | None] = lambda test: None
        """Returns whether a condition holds; None: only running the script would tell."""
        self._tests: dict[int, list[tuple[ast.expr, bool]]] = {}
        """Value that a name gets → the conditions above it, and which way they have to go."""
        self._find_tests(tree, [])

    def bound(self, name: str) -> list[ast.expr | None]:
        """Return what a name, or `name.attribute`, is bound to, in the order of the text; None for what is not known.

        Where something stands before `ends_at`, it is that alone.
        """
        found = [
            (line, node) for line, node in self._bound.get(name, []) if node is None or self._is_made(node) is not False
        ]
        return [node for line, node in found if line < self.ends_at] or [node for _, node in found]

    def is_conditional(self, node: ast.expr) -> bool:
        """Return whether a name gets this value under a condition that is not known."""
        return self._is_made(node) is None

    def _is_made(self, node: ast.expr) -> bool | None:
        known = [(self.decide(test), way) for test, way in self._tests.get(id(node), ())]
        if any(holds is not None and holds != way for holds, way in known):
            return False
        return None if any(holds is None for holds, _ in known) else True

    def _find_tests(self, node: ast.AST, above: list[tuple[ast.expr, bool]]) -> None:
        for child in ast.iter_child_nodes(node):
            here = above
            if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test) and child is not node.test:
                here = [*above, (node.test, child in node.body)]
            if (
                here
                and isinstance(child, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr)
                and child.value is not None
            ):
                self._tests[id(child.value)] = here
            self._find_tests(child, here)

    def list_of(self, name: str) -> tuple[list[ast.expr], list[ast.expr]] | None:
        """Return the elements of a list that is made at one place, and what `append`, `extend` and `+=` put into it.

        None: it is changed in other ways, or in a loop, or made in several places.
        """
        bound = self.bound(name)
        made = [one for one in bound if one is not None]
        if len(made) != 1 or not isinstance(made[0], ast.List):
            return None
        found, changes = list[ast.expr](), 0
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For | ast.While) and name in {ast.unparse(part) for part in ast.walk(node)}:
                return None
            if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
                changes, value, more = changes + 1, node.value, node.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in (f"{name}.append", f"{name}.extend"):
                changes, value = changes + 1, node
                more = ast.List(node.args) if called(node) == "append" else node.args[0]
            else:
                continue
            if self._is_made(value) is not False:
                found += more.elts if isinstance(more, ast.List) else [ast.Starred(more)]
        return (made[0].elts, found) if changes == len(bound) - 1 else None

    def is_one_thing(self, name: str) -> bool:
        """Return whether a function, a class or what is imported has a name that nothing else has."""
        meanings = (name in self.importable or name in self.classes, name in self.imported, any(self.bound(name)))
        return sum(meanings) == 1 and self.imported.get(name) != ""

    def makes_at_import(self, name: str) -> bool:
        """Return whether a name of the module is a lambda, a `partial`, or what a function of the module returned."""
        made = [part.value for part in self.tree.body if isinstance(part, ast.Assign) and _is(part.targets, name)]
        return len(made) == 1 and (
            isinstance(made[0], ast.Lambda)
            or (isinstance(made[0], ast.Call) and called(made[0]) in (*self.importable, "partial"))
        )

    def attributes_of(self, name: str) -> dict[str, ast.expr | None]:
        """Return what the attributes of a name are set to last; of any name for an empty one."""
        owned = {stored: stored.rpartition(".") for stored in self._bound if "." in stored and self.bound(stored)}
        return {attribute: self.bound(stored)[-1] for stored, (owner, _, attribute) in owned.items()
                if owner == name or not name}  # fmt: skip

    def calls(self, name: str) -> list[ast.Call]:
        """Return the calls of what is called `name`, of classes that are derived of it, and of those named alike."""
        return [
            node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and self.means(node, name, alike=True)
        ]

    def only_call(self, name: str, *, of: Path, command: str) -> ast.Call:
        """Return the call of `name`. Raises UsageError where the file `of` makes none, or several; `command` is what
        can be given in its place."""
        calls = self.calls(name)
        if len(calls) != 1:
            raise UsageError(
                f"{of} makes {len(calls) or 'no'} {name}, and a run file is one run",
                hint=f"give the script that makes one, or the options of `{command}`",
            )
        return calls[0]

    def means(self, call: ast.Call, name: str, *, alike: bool = False) -> bool:
        """Return whether a call is of `name`: itself, by another name, or a class of the script that is derived of it;
        `alike`: or of something whose name ends so."""
        word = called(call)
        words = {word, self.imported.get(word, "").rpartition(".")[2], *self.bases.get(word, ())}
        return any(one == name or one.endswith(f".{name}") or (alike and one.endswith(name)) for one in words)

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
        return found or [node]

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
                for alias in node.names:
                    self._import(alias.asname or alias.name, f"{'.' * node.level}{module}.{alias.name}")
            case ast.Import():
                for alias in node.names:
                    self._import(alias.asname or alias.name, alias.name)
            case ast.Delete():
                for target in node.targets:
                    self._bind(target, None)
            case ast.Lambda():
                for name in _parameters(node):
                    self._bound[name].append((node.lineno, None))
            case ast.Call(func=ast.Attribute(attr=change, value=ast.Name(id=name))) if change in _CHANGES:
                self._bound[name].append((node.lineno, None))

    def _import(self, name: str, meant: str) -> None:
        if self.imported.setdefault(name, meant) != meant:
            self.imported[name] = ""

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
            self._bound[ast.unparse(target)].append((target.lineno, value))
            made = value.value if isinstance(value, ast.Subscript) else value  # parser.parse_…()[0]
            if isinstance(made, ast.Call) and called(made).startswith("parse_"):
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


def _is(targets: list[ast.expr], name: str) -> bool:
    return [ast.unparse(target) for target in targets] == [name]


def called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def keywords(call: ast.Call, *positions: str) -> dict[str, ast.expr]:
    """Return the arguments of a call by name; those without have the names of `positions`."""
    return dict(zip(positions, call.args, strict=False)) | {
        given.arg: given.value for given in call.keywords if given.arg is not None
    }


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    given = function.args
    all_of_them = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return [arg.arg for arg in all_of_them if arg is not None and arg.arg != "self"]
