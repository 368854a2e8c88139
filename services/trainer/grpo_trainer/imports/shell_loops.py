"""Loops of a shell script that it decides alone: over the arguments that it is given, and over words that stand in it.

They are read turn by turn, as a shell runs them. All other loops are read once, and what is set in them is named.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

WHILE = re.compile(r"while[ \t]+((?:(?!\bdo\b).)+?)\s*[;\n]\s*do\b", re.DOTALL)
FOR = re.compile(r"for[ \t]+(\w+)(?:[ \t]+in\b[ \t]*([^\n;]*?))?[ \t]*(?:;|\n)\s*do\b")
BREAKS = ("break", "continue", "exit")
MOST_TURNS = 500
_COUNTED = re.compile(r"\(\([ \t]*\$?\{?#\}?[ \t]*(?:(>=?|!=)[ \t]*(\d+))?[ \t]*\)\)")
_FOREVER = re.compile(r"(?:true|:)[ \t]*")
_GETOPTS = re.compile(r"getopts[ \t]+([\"']?)([\w:?]+)\1[ \t]+(\w+)")
_WITHIN = "within OPTIND"
"""No name of a variable: where in a word such as `-xv` the next option stands."""
_COMPARES = {">": "-gt", ">=": "-ge", "!=": "-ne"}


@dataclass
class Loop:
    """A loop that is read turn by turn."""

    begins: int
    """Where each turn begins: with the test of `while`, or behind the `do` of `for`."""
    text: str
    """What was read when the loop began: lines that commands are given are taken out of it in each turn."""
    name: str = ""
    """What a `for` sets."""
    items: list[str] | None = None
    """What is still to come of a `for`; None: it is a `while`."""


def plain_test(test: str) -> str | None:
    """Return the test of a `while` as words of `[`, or None for one that no argument decides."""
    if counted := _COUNTED.fullmatch(test.strip()):
        return f"[ $# {_COMPARES[counted[1] or '>']} {counted[2] or 0} ]"
    return test if "$" in test else None


def breaks_by_itself(test: str, body: str) -> bool:
    """Return whether a loop has no test, takes arguments away and breaks: `while true; do case "$1" in …`."""
    inside = body.partition("done")[0]
    return _FOREVER.fullmatch(test) is not None and bool(re.search(r"\bshift\b", inside) and "break" in inside)


def getopts(test: str, arguments: Sequence[str], known: dict[str, str]) -> bool | None:
    """Take the next option of `getopts SPEC NAME` and set what it sets; return whether there was one. None: the test is
    another one."""
    asked = _GETOPTS.fullmatch(test.strip())
    if asked is None:
        return None
    spec, name = asked[2], asked[3]
    at, within = int(known.setdefault("OPTIND", "1")), int(known.pop(_WITHIN, "1"))
    word = arguments[at - 1] if at <= len(arguments) else ""
    if within == 1 and (len(word) < 2 or word[0] != "-" or word == "--"):
        known["OPTIND"] = str(at + (word == "--"))
        return False
    letter, rest = word[within], word[within + 1 :]
    takes_value = f"{letter}:" in spec and letter != ":"
    if takes_value and not rest:
        rest, at = (arguments[at] if at < len(arguments) else ""), at + 1
    if rest and not takes_value:
        known[_WITHIN] = str(within + 1)
    else:
        at += 1
    known |= {name: letter if letter in spec else "?", "OPTARG": rest if takes_value else "", "OPTIND": str(at)}
    return True
