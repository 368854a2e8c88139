"""Whether what stands under a condition of a shell script is read: `if`, `case`, and `[[ … ]] && …`.

A condition holds or not where the script itself sets what it tests. Of files, of commands and of variables that are
not set nothing is known: then both ways are read, and what is set there is named.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .shell_loops import Loop

IF = re.compile(r"(if|elif)[ \t]+((?:(?!\bthen\b).)+?)\s*[;\n]\s*then\b", re.DOTALL)
CASE = re.compile(r"case[ \t]+([^\n]+?)[ \t]+in(?=\s)")
PATTERN = re.compile(r"\(?([^()\n;]+)\)")
ELSE = re.compile(r"else\b")
TEST = re.compile(r"(?:![ \t]+)?(?:\[|test[ \t]|(?:true|false|\"?\$\{?\w+\}?\"?)[ \t]*(?:&&|\|\||$))")
"""What the commands behind `&&` and `||` depend on, where no command is run."""
_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip


@dataclass
class Branches:
    """An `if`, a `case` or a loop that is being read."""

    shown: str
    decides: bool = True
    """Whether each branch so far is known to be taken or not."""
    taken: bool = False
    tested: str | None = None
    """The word that the patterns of a `case` are compared with; None: it is not known, or there is none."""
    waits: bool = False
    """Whether a pattern of a `case` comes next."""
    before: Any = None
    """What was known before a branch that is not taken."""
    loop: Loop | None = None
    """What is read turn by turn; None: it is no loop, or one that is read once, or its last turn."""
    is_loop: bool = False
    """Whether it is, or was, read turn by turn."""
    is_group: bool = False
    """Whether it is `{ …; }`, with the test before it."""

    def enter(self, holds: bool | None) -> bool:
        """Begin a branch, and return whether it is left out."""
        if self.decides and self.taken:
            return True
        if holds is None:
            self.decides = False
        elif holds and self.decides:
            self.taken = True
        return holds is False


def matches(word: str | None, patterns: str) -> bool | None:
    """Return whether a word is one of the `patterns` of a `case`."""
    if word is None or "$" in patterns:
        return None
    plain = [re.sub(r"\\(.)", r"[\1]", one.strip().strip("\"'")) for one in patterns.split("|")]
    return any(fnmatchcase(word, pattern) for pattern in plain)


def truth(tokens: Sequence[str] | None) -> bool | None:
    """Return whether tests hold, of their words and operators; None: it is not known."""
    if not tokens:
        return None
    value, rest = _chain(list(tokens))
    return None if rest else value


def _chain(tokens: list[str]) -> tuple[bool | None, list[str]]:
    value, tokens = _unit(tokens)
    while tokens and tokens[0] in ("&&", "||", "-a", "-o"):
        joins, tokens = tokens[0], tokens[1:]
        other, tokens = _unit(tokens)
        ends = joins in ("||", "-o")  # the value of one part that is that of both
        value = ends if ends in (value, other) else None if None in (value, other) else not ends
    return value, tokens


def _unit(tokens: list[str]) -> tuple[bool | None, list[str]]:
    match tokens:
        case ["!", *rest]:
            value, rest = _unit(rest)
            return None if value is None else not value, rest
        case ["(" | "[[" | "[" as opens, *rest]:
            closes = {"(": ")", "[[": "]]", "[": "]"}[opens]
            value, rest = _chain(rest)
            return (value, rest[1:]) if rest[:1] == [closes] else (None, [])
        case ["test", *rest]:
            return _chain(rest)
        case ["true" | "false" as word, *rest] if not rest or rest[0] in ("&&", "||"):
            return word == "true", rest
    ends = next((i for i, one in enumerate(tokens) if one in ("&&", "||", "]]", "]", ")", "-a", "-o")), len(tokens))
    return _test(tokens[:ends]), tokens[ends:]


def _test(words: list[str]) -> bool | None:
    if any("$" in word or "`" in word for word in words):
        return None
    match words:
        case ["-z", word]:
            return not word
        case ["-n", word] | [word]:
            return bool(word)
        case [left, "==" | "=", right]:
            return fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatchcase(left, right)
        case [left, compares, right] if compares in _COMPARES and left.isdecimal() and right.isdecimal():
            return _COMPARES[compares](int(left), int(right))
    return None
