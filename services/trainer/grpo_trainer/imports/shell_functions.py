"""Find what a shell script holds to be read elsewhere: functions, where they are called, and scripts of `bash -c`."""

import re
from collections.abc import Sequence

from .shell_values import end_of

HERE = re.compile(r"<<-?[ \t]*([\"']?)(\w+)\1")
_BEGINS = re.compile(r"(?:function[ \t]+([\w:.-]+)[ \t]*(?:\([ \t]*\))?|([\w:.-]+)[ \t]*\([ \t]*\))\s*\{(?=\s)")
_OPENS = re.compile(r"(?<![^\s;&|(])\{(?=\s)")
_CLOSES = re.compile(r"(?<![^\s;&])\}(?=[\s;&|)<>]|$)")
_COMMENT = re.compile(r"(?<![^\s;])#[^\n]*")


def function_at(text: str, at: int) -> tuple[str, str, int] | None:
    """Return the name and the body of the function that is defined at `at`, and where the text goes on; None: none."""
    begun = _BEGINS.match(text, at)
    if begun is None:
        return None
    at, depth, lines_end = begun.end(), 1, ""
    while at < len(text):
        if comment := _COMMENT.match(text, at):
            at = comment.end()
        elif here := HERE.match(text, at):
            at, lines_end = here.end(), here[2]
        elif text[at] == "\n" and lines_end:  # what a command is given may hold any mark
            close = re.compile(rf"^[ \t]*{lines_end}[ \t]*$", re.MULTILINE).search(text, at)
            at, lines_end = close.end() if close else at + 1, ""
        elif text[at] == "\\":
            at += 2
        elif text[at] in "\"'" or text.startswith(("$(", "${"), at):
            at = end_of(text, at) or len(text)
        elif _CLOSES.match(text, at):
            at, depth = at + 1, depth - 1
            if not depth:
                return begun[1] or begun[2], text[begun.end() : at - 1], at
        else:
            depth += _OPENS.match(text, at) is not None
            at += 1
    return None


def script_in(words: Sequence[str]) -> str | None:
    """Return the script in `bash -c SCRIPT`, with whatever starts that shell before it."""
    for program, flag, script in zip(words, words[1:], words[2:], strict=False):
        if program.rpartition("/")[2] in ("bash", "sh") and re.fullmatch("-[a-z]*c", flag):
            return script
    return None
