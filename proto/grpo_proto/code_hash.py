"""Digest of a reward's source files: it changes when the scores may change."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def code_hash(file: Path) -> str:
    """SHA-256, in hexadecimal, of a reward's source file and of the files that it imports from its own folder.

    Follows relative imports, and plain `import helper` where the folder is not a package, through all files found. A
    file without such imports has the digest that `sha256sum` prints. Libraries do not count: the operator pins them.
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
    """Paths that the imports of `file` may mean. In `from .module import name`, `name` may be a module, too."""
    in_package = (file.parent / "__init__.py").exists()
    for node in ast.walk(ast.parse(file.read_bytes())):
        places: list[Path] = []
        if isinstance(node, ast.ImportFrom) and (node.level or not in_package):
            folder = file.parents[max(node.level - 1, 0)]
            module = folder.joinpath(*node.module.split(".")) if node.module else folder
            places = [module, *(module / name.name for name in node.names)]
        elif isinstance(node, ast.Import) and not in_package:
            places = [file.parent.joinpath(*name.name.split(".")) for name in node.names]
        for place in places:
            yield place.with_suffix(".py")
            yield place / "__init__.py"
