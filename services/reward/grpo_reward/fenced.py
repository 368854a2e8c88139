"""Fenced blocks of Markdown as CommonMark has them: of backticks or tildes, longer, in lists, with words behind."""

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark").disable(["html_block", "code", "inline"])
"""Without the blocks that would hide a fence: a line of HTML such as `<solution>`, and indented text."""
_LANGUAGE = re.compile(r"[{.\s]*([A-Za-z]*)")


MAX_MENDED = 4
"""Most fences at the end of a line of code that are set on a line of their own; each parses the text again."""


def last_fenced(text: str, language: re.Pattern[str]) -> str | None:
    """What stands in the last closed block of `language`; in the last without any where none names one.

    `language` is matched with the first word behind the fence, in lower case. Unlike in CommonMark a fence at the end
    of the last line of code closes the block, too.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fences = _fences(lines)
    for _ in range(MAX_MENDED):
        if not any(_close(lines, token) for token in fences):
            break
        fences = _fences(lines)
    marked = unmarked = None
    for token in fences:
        if not _is_closed(lines, token):
            continue
        name = _LANGUAGE.match(token.info.lower())
        if name and language.fullmatch(name[1]):
            marked = token.content
        elif not token.info.strip():
            unmarked = token.content
    return unmarked if marked is None else marked


def _fences(lines: list[str]) -> list[Token]:
    return [token for token in _MARKDOWN.parse("\n".join(lines)) if token.type == "fence" and token.map is not None]


def _is_closed(lines: list[str], token: Token) -> bool:
    """Whether it has a closing fence; without one it runs to the end of the text."""
    first, end = token.map or (0, 0)
    closing = lines[end - 1].strip(" \t>")
    return end - first >= 2 and len(closing) >= len(token.markup) and set(closing) == {token.markup[0]}


def _close(lines: list[str], token: Token) -> bool:
    """Set the fence behind the last line of code (`print(7)```) on its own line; False where there is none.

    In a closed block such a line may be text, unless a further block begins below it.
    """
    first, end = token.map or (0, 0)
    for place in range(first + 1, end):
        code = lines[place].rstrip().rstrip(token.markup[0])
        num_marks = len(lines[place].rstrip()) - len(code)
        if num_marks < len(token.markup) or not code.strip(" \t>"):
            continue
        opens_below = (lines[below].lstrip(" \t>").startswith(token.markup) for below in range(place + 1, end - 1))
        if _is_closed(lines, token) and not any(opens_below):
            return False
        before = lines[first].partition(token.markup)[0]
        lines[place : place + 1] = [code, re.sub(r"[^>\s]", " ", before) + token.markup]
        return True
    return False
