"""What a shell would compute, where a script tells it alone: `$(cd "$(dirname "$0")/.." && pwd)`, `$((8 * 4))`."""

import ast
import operator
import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}
MOST_DIGITS = 18


def end_of(text: str, at: int) -> int | None:
    """Return where what opens at `at` is closed, behind it: `"…"`, `'…'`, `$(…)`, `${…}`. None: nowhere."""
    if text[at] == "'":
        end = text.find("'", at + 1)
        return None if end < 0 else end + 1
    opens, closes, at = ("", '"', at + 1) if text[at] == '"' else ("(", ")", at + 2)
    if text[at - 2 : at] == "${":
        opens, closes = "{", "}"
    depth = 1
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
        elif character == closes or (opens and character == opens):
            depth += 1 if character == opens else -1
            at += 1
            if not depth:
                return at
        elif text.startswith(("$(", "${"), at) or character == '"' or (character == "'" and opens == "("):
            inner_end = end_of(text, at)
            if inner_end is None:
                return None
            at = inner_end
        else:
            at += 1
    return None


def computed(commands: Sequence[Sequence[str]]) -> str | None:
    """Return what `$(…)` of these commands stands for; None where only running them would tell."""
    if any("$" in word or "`" in word for command in commands for word in command):
        return None
    match [[word for word in command if word != "--"] for command in commands]:
        case [["cd", folder], ["pwd", *_]]:
            return os.path.abspath(folder)
        case [["pwd", *_]]:
            return os.getcwd()
        case [["realpath", place] | ["readlink" | "realpath", "-f" | "-m", place]]:
            return os.path.abspath(place)
        case [["dirname", place]]:
            return os.path.dirname(place.rstrip("/")) or ("/" if place.startswith("/") else ".")
        case [["basename", place, *suffix]] if len(suffix) < 2:
            name = place.rstrip("/").rpartition("/")[2]
            return name.removesuffix(suffix[0]) if suffix and name != suffix[0] else name
        case [["expr", *parts]]:
            return arithmetic(" ".join(parts))
    return None


def trimmed(text: str, ends: str, pattern: str) -> str:
    """Return `text` without what `pattern` matches of its beginning (`#`) or its end (`%`); doubled, the most of it."""
    at_start = ends[0] == "#"
    parts = [text[:n] if at_start else text[len(text) - n :] for n in range(len(text) + 1)]
    for part in reversed(parts) if len(ends) == 2 else parts:
        if fnmatchcase(part, pattern):
            return text[len(part) :] if at_start else text[: len(text) - len(part)]
    return text


def arithmetic(text: str) -> str | None:
    """Return the value of an expression of whole numbers; None for any other."""
    if not re.fullmatch(r"[\d\s+*/%()-]+", text) or len(text) > 200:
        return None
    try:
        return str(_whole(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ArithmeticError, ValueError, KeyError):
        return None


def _whole(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub()):
            return -_whole(node.operand)
        case ast.BinOp():
            value = _ARITHMETIC[type(node.op)](_whole(node.left), _whole(node.right))
            if len(str(value)) <= MOST_DIGITS:
                return value
    raise ValueError
