"""Which code a reward is: a digest that changes when its scores may."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def code_hash(file: Path) -> str:
    """SHA-256 in hexadecimal of a reward's source file, and of those that it imports relatively, theirs too.

    A file that imports none so has its own digest, the one that `sha256sum` prints: that is every plugin of one file.
    Libraries are not in it: the operator pins them.
    """
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in _with_imports(file)}
    own = digests.pop(file)
    if not digests:
        return own
    return hashlib.sha256("".join([own, *sorted(digests.values())]).encode()).hexdigest()


def _with_imports(file: Path) -> set[Path]:
    found, todo = {file}, [file]
    while todo:
        new = _imported(todo.pop()) - found
        found |= new
        todo += new
    return found


@cache
def _imported(file: Path) -> frozenset[Path]:
    return frozenset(path for path in _candidates(file) if path.is_file())


def _candidates(file: Path) -> Iterator[Path]:
    """Where the modules of `from .module import name` may be: `name` may be a module, too."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = file.parents[node.level - 1]
            module = folder.joinpath(*node.module.split(".")) if node.module else folder
            for place in (module, *(module / name.name for name in node.names)):
                yield place.with_suffix(".py")
                yield place / "__init__.py"
