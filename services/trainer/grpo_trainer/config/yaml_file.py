"""One YAML file of settings. What YAML drops, or reads as something else, is a mistake with its line and key.

YAML 1.1, which PyYAML reads, takes `010` for 8, `1:30` for 90, `yes` and `on` for true, `{question}` for a mapping, and
of a key that stands twice the last; pydantic would then take true for the number 1.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ..errors import UsageError, storage_error_class
from .expected_types import TEXT, Expected
from .look_alikes import in_yaml

_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_FITTING = {"bool": (bool,), "int": (int, float, bool), "float": (float, int), "seq": (list,), "map": (dict,)}
"""What YAML reads → the types of a setting that may be meant by it."""


class _Loader(yaml.SafeLoader):
    """Leaves dates text: no setting is a date."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as in the base class
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_yaml(file: Path, model: type[BaseModel]) -> dict[str, Any]:
    """The settings in `file`, which are some of `model`'s. Raises UsageError, for all mistakes of reading together."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        root = yaml.compose(text, Loader=_Loader)
        mistakes = list(_Nodes(file).mistakes(root, model, "")) if root is not None else []
        content = None if mistakes else yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        hint = "what is no flag is a YAML file, and a setting is a flag: --section.key VALUE"
        raise storage_error_class(error)(f"{file}: {error.strerror}", hint=hint) from error
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not YAML: {error}", hint=_hint(error, text)) from error
    except ValueError as error:
        raise UsageError(f"{file} is not YAML: {error}", hint="write it as UTF-8") from error
    if mistakes:
        raise UsageError("\n".join(mistakes))
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a mapping of sections", hint="such as `model: {name_or_path: …}`")
    return content


def _hint(error: yaml.YAMLError, text: str) -> str:
    """Say what to change: a character in the line of the error, or in the one before, where YAML began to misread."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    lines = list(enumerate(text.splitlines(), start=1))
    near = lines[max(mark.line - 1, 0) : mark.line + 1] if mark is not None else lines
    for number, line in near:
        if (mistake := in_yaml(line)) is not None:
            return f"line {number} {mistake}"
    return "put a blank behind the colon of a key, and texts with braces, colons or quotation marks into quotes"


class _Nodes:
    """Goes through the nodes of a file beside the types that are expected there; into what an anchor names, once."""

    def __init__(self, file: Path):
        self.file = file
        self.seen: set[int] = set()

    def mistakes(self, node: yaml.Node, annotation: Any, key: str) -> Iterator[str]:
        """Yield a line for each mistake in `node`, the value of `key`."""
        expected = Expected.of(annotation)
        if (mistake := _misread(node, expected)) is not None:
            yield self._line(node, key, mistake)
        if id(node) in self.seen:
            return
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield from self._in_mapping(node, expected, key)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                yield from self.mistakes(item, expected.item, f"{key}.{number}")

    def _in_mapping(self, node: yaml.MappingNode, expected: Expected, key: str) -> Iterator[str]:
        lines: dict[str, int] = {}
        for name_node, value in node.value:
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else "…"
            path = f"{key}.{name}" if key else name
            if name in lines:
                yield self._line(name_node, path, f"stands twice, first in line {lines[name]}; leave one of them out")
            lines.setdefault(name, name_node.start_mark.line + 1)
            if name_node.tag.endswith(":merge"):
                yield from self.mistakes(value, expected.annotation, key)
                continue
            mistake = "YAML reads it as null; put it in quotes" if name_node.tag.endswith(":null") else None
            if (mistake := mistake or _misread(name_node, TEXT)) is not None:
                yield self._line(name_node, path, f"its name: {mistake}")
            yield from self.mistakes(value, expected.of_key(name), path)

    def _line(self, node: yaml.Node, key: str, mistake: str) -> str:
        shown = _SURROGATE.sub("\ufffd", key)
        return f"{self.file}, line {node.start_mark.line + 1}: {shown}: {mistake}"


def _misread(node: yaml.Node, expected: Expected) -> str | None:
    """Why the value is not what the writer of the file most likely meant; None where it is."""
    kind, written, is_plain = node.tag.rpartition(":")[2], "", False
    if isinstance(node, yaml.ScalarNode):
        written, is_plain = node.value, node.style is None
    is_number = kind in ("int", "float")
    if _SURROGATE.search(written):
        return "half of a surrogate pair, which is no character; write the character itself"
    if is_plain and _LEADING_ZERO.fullmatch(written) and (is_number or expected.has(int, float)):
        octal = f", and YAML takes it for the octal number {_value(node)}" if kind == "int" else ""
        return f"{written} begins with 0{octal}; write a number without it, or a text in quotes"
    if is_plain and is_number and ":" in written:
        return f"YAML takes {written} for {_value(node)}, counted in sixties; write that, or a text in quotes"
    if kind not in _FITTING or expected.has(Any, *_FITTING[kind]) or (kind == "map" and expected.model is not None):
        return None
    read = {"map": "a mapping", "seq": "a list"}.get(kind) or str(_value(node))
    given = f"{written}, which YAML reads as {read}" if written not in ("", read) else read
    if expected.has(str, Path):
        return f"{given}, and a text is expected; put it in quotes"
    if kind == "bool" and expected.has(int, float):
        return f"{given}, and a number is expected"
    return None


def _value(node: yaml.Node) -> Any:
    value = yaml.SafeLoader("").construct_object(node)
    return str(value).lower() if isinstance(value, bool) else value
