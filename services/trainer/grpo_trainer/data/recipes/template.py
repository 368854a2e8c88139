r"""Templates of a question: `{column}` is filled in from a row, every other brace is text.

- `{question}`, `{my question}`, `{问题}` and paths into objects and lists (`{extra.q}`, `{choices[0]}`) are filled in.
  What looks like a name and is none in the dataset is a mistake.
- `{{question}}` is the text {question}, `{{{question}}}` the value between braces, and so on, as in Python.
- Braces straight behind a LaTeX command, behind `^`, or behind `_` after a single letter are LaTeX and stay text:
  `\text{cm}`, `\frac{1}{2}`, `x^{n}`, `a_{n}`. `\boxed{{{column}}}` fills a column in there.
- What does not look like a name, such as `{"answer": 1}` or `{}`, is text, unless a column has that very name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MISSING = object()
_NAME = re.compile(r"[^\W\d][\w .\[\]-]*(?<! )")
_BRACES = re.compile(r"(\{+)([^{}\n]*)(\}+)")
# `\n`, `\t` and `\r` are line breaks and tabs that a shell, or YAML's other quotation marks, left as they are.
_TOKEN = re.compile(r"(?P<command>\\(?![ntr](?![A-Za-z]))[A-Za-z]+\*?(?:\[[^\][{}]*\])?)|\\.|.", re.DOTALL)
_BASE_OF_INDEX = re.compile(r"(?<![^\W\d_])[^\W_]|[)\]']")


@dataclass(frozen=True)
class Field:
    """A place of a template that is filled in. `text` stands there where `name` is no column, and not `required`."""

    name: str
    text: str
    required: bool


@dataclass(frozen=True)
class Template:
    """A text in parts, some of them to be filled in. `latex` are names in braces that are text because of LaTeX."""

    parts: tuple[str | Field, ...]
    latex: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Template":
        return _parsed(text)

    def names(self, *, required: bool) -> list[str]:
        """The names of columns and paths, in the order of the template: those that must be there, or the others."""
        fields = (part for part in self.parts if isinstance(part, Field))
        return list(dict.fromkeys(field.name for field in fields if field.required is required))

    def filled(self, row: Mapping[str, Any]) -> str:
        """The text for one row. Lists read as in Python: `[44, 19, 35]`. Raises ValueError for a column of messages."""
        return "".join(part if isinstance(part, str) else _shown(part, row) for part in self.parts)


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or at a path into one, such as `extra.q` and `choices[0]`; MISSING where there is none."""
    return row[name] if name in row else _inside(row, re.sub(r"\[(\d+)\]", r".\1", name))


def paths_of(row: Mapping[str, Any]) -> Iterator[str]:
    """The names of the columns, and the paths to what their objects hold."""
    for name, value in row.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in paths_of(value))


def _inside(value: Any, path: str) -> Any:
    if isinstance(value, list):
        number, _, rest = path.partition(".")
        found = value[int(number)] if number.isdecimal() and int(number) < len(value) else MISSING
        return _inside(found, rest) if rest else found
    if not isinstance(value, Mapping):
        return MISSING
    if path in value:
        return value[path]
    # A name may hold dots itself: the longest that is there comes first.
    for dot in reversed([match.start() for match in re.finditer(r"\.", path)]):
        if path[:dot] in value:
            return _inside(value[path[:dot]], path[dot + 1 :])
    return MISSING


def _shown(field: Field, row: Mapping[str, Any]) -> str:
    value = value_at(row, field.name)
    if value is MISSING and not field.required:
        return field.text
    if isinstance(value, list) and any(isinstance(item, Mapping) and "role" in item for item in value):
        raise ValueError(
            f"{{{field.name}}} holds messages, and is filled in as text; {{{field.name}[0].content}} is the text of "
            "the first of them"
        )
    return str(value)


@lru_cache
def _parsed(text: str) -> Template:
    parts: list[str | Field] = []
    latex: list[str] = []
    arguments = _latex_arguments(text)
    end = 0
    for match in _BRACES.finditer(text):
        opening, inside, closing = match.groups()
        depth, name = min(len(opening), len(closing)), inside.strip()
        required = _NAME.fullmatch(inside) is not None
        if depth == 1 and match.end(1) - 1 in arguments:
            latex.append(name)
            continue
        if not name or (depth > 1 and not required):
            continue
        braces = depth // 2
        begin, stop = match.end(1) - depth, match.start(3) + depth
        parts.append(text[end:begin] + "{" * braces)
        parts.append(Field(name, f"{{{inside}}}", required) if depth % 2 else inside)
        parts.append("}" * braces)
        end = stop
    parts.append(text[end:])
    return Template(tuple(parts), tuple(latex))


def _latex_arguments(text: str) -> set[int]:
    """The positions of braces that open an argument of a LaTeX command, a power or an index."""
    found: set[int] = set()
    open_braces: list[bool] = []
    argument = False
    """Whether a brace that opens here is an argument."""
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{":
                if argument:
                    found.add(token.start())
                open_braces.append(argument)
                argument = False
            case "}":  # a further argument may follow
                argument = open_braces.pop() if open_braces else False
            case "^":
                argument = True
            case "_":
                argument = argument or _ends_base(text, token.start())
            case _:
                argument = token["command"] is not None
    return found


def _ends_base(text: str, position: int) -> bool:
    """Whether a letter by itself, a digit or a bracket stands before `position`, as `x` and `)` do before an index."""
    return position > 0 and _BASE_OF_INDEX.match(text, position - 1) is not None
