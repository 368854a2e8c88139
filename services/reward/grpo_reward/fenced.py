"""Fenced blocks of Markdown as CommonMark has them: of backticks or tildes, longer, in lists, with words behind."""

import re

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark").disable(["html_block", "code", "inline"])
"""Without the blocks that would hide a fence: a line of HTML such as `<solution>`, and indented text."""
_LANGUAGE = re.compile(r"[{.\s]*([A-Za-z]*)")


def last_fenced(text: str, language: re.Pattern[str]) -> str | None:
    """What stands in the last closed block of `language`; in the last without any where none names one.

    `language` is matched with the first word behind the fence, in lower case.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    marked = unmarked = None
    for token in _MARKDOWN.parse(text):
        if token.type != "fence" or token.map is None:
            continue
        first, end = token.map
        closing = lines[end - 1].strip(" \t>")
        if end - first < 2 or len(closing) < len(token.markup) or set(closing) != {token.markup[0]}:
            continue  # it runs to the end of the text
        name = _LANGUAGE.match(token.info.lower())
        if name and language.fullmatch(name[1]):
            marked = token.content
        elif not token.info.strip():
            unmarked = token.content
    return unmarked if marked is None else marked
