"""A text as words, marks and the letters of options."""

import re
from typing import Literal, NamedTuple

from .normal_form import normal_form

_MARKUP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|bf|rm)\s*\{([^{}]*)\}|[$`\"“”]|\\[()\[\]]")
_EMPHASIS = re.compile(r"(?<![*_\w])([*_]{1,3}|')\s?\(?([A-Za-z])[).:]?\s?\1(?![*_\w])")
_STARS = re.compile(r"[*_]{1,3}")

_CHINESE = r"\u4e00-\u9fff"
_TOKEN = re.compile(
    rf"""
      (?P<word>[^\W_{_CHINESE}]{{2,}}(?:-[^\W_]+)*(?:['’](?!s\b)[^\W_]+)?
        | [A-Za-z](?:-[^\W_]+|['’](?!s\b)[^\W_])+             # D-Day, I'd
        | (?:[A-Za-z]\.){{2,}}                                # U.S.
        | ['’]s\b                                             # of it's
        | 答案 | [^\W_A-Za-z])
    | (?<![^\W_])[(\[]\s?(?P<enclosed>[A-Za-z])\s?[)\]]       # (B) and [B], and not the one of f(B)
    | (?<![(\[])(?P<closed>[A-Za-z])\)(?![^\W_])              # B)
    | (?P<dotted>[A-Za-z])(?=\.(?:\s|$))                      # B.
    | (?P<colon>[A-Za-z])(?=:(?:\s|$))                        # B:
    | (?P<bare>[A-Za-z])
    | (?P<line>\n)
    | (?P<mark>->|[^\w\s])
    """,
    re.VERBOSE,
)
_LABELS: dict[str, Literal["", ")", ".", ":"]] = {
    "enclosed": ")",
    "closed": ")",
    "dotted": ".",
    "colon": ":",
    "bare": "",
}


class Token(NamedTuple):
    """`text`: a letter in upper case, a word in lower case, a mark as it stands.

    `label`: `(B)`, `[B]`, `B)` and `**B**` have `)`; `B.` and `B:` before white space have the mark that follows them.
    """

    kind: Literal["letter", "word", "mark", "line", "end"]
    text: str
    label: Literal["", ")", ".", ":"] = ""
    small: bool = False
    """Begins in lower case."""
    spaced: bool = True
    """White space, or nothing, stands before it."""


def plain(text: str) -> str:
    """`text` without markup; an emphasized letter stands in parentheses."""
    text = _MARKUP.sub(r"\1", normal_form(text, "NFKC").replace("。", ".").replace("、", ","))
    return _STARS.sub("", _EMPHASIS.sub(r"(\2)", text)).strip().strip("{}").strip()


class Tokens:
    """The tokens of a plain text, found in linear time. Before the first and behind the last stands `END`."""

    def __init__(self, tokens: list[Token]):
        self.all = tokens

    @classmethod
    def of(cls, text: str) -> "Tokens":
        tokens: list[Token] = []
        opened = False
        for match in _TOKEN.finditer(text):
            token = _token(match)
            if opened and match.lastgroup == "closed":  # of "(see A)", which labels nothing
                tokens += [token._replace(label=""), Token("mark", ")", spaced=False)]
            else:
                tokens.append(token)
            if match[0][-1] in "()":
                opened = match[0] == "("
        return cls(tokens)

    def __getitem__(self, at: int) -> Token:
        return self.all[at] if 0 <= at < len(self.all) else END


END = Token("end", "")


def _token(match: re.Match[str]) -> Token:
    group = match.lastgroup or ""
    text, start = match[group], match.start()
    spaced = start == 0 or match.string[start - 1].isspace()
    if group == "word":
        return Token("word", text.lower().replace("’", "'"), small=text[0].islower(), spaced=spaced)
    if group in _LABELS:
        return Token("letter", text.upper(), _LABELS[group], text.islower(), spaced)
    return Token("line", text) if group == "line" else Token("mark", text, spaced=spaced)
