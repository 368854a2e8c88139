"""The run file that an import writes: settings with a comment each, the lines that start it, and what is not in it."""

import json
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ..config.algorithm import LOSS_TYPES
from ..config.keys import Keys
from ..config.run_config import RunConfig
from ..config.settings import explain
from ..config.yaml_file import read_yaml
from ..errors import UsageError


@dataclass(frozen=True)
class Entry:
    """The value of a setting, and where it comes from."""

    value: Any
    comment: str


@dataclass
class RunFile:
    """A run file in the making. Settings are named as on the command line, `optimizer.learning_rate`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    """The lines that start the servers and the run, in order."""
    differs: list[str] = field(default_factory=list)
    """What the imported command asks for and the run does not do, or does otherwise."""
    not_needed: list[str] = field(default_factory=list)
    """What has no place here and changes nothing."""

    def set(self, setting: str, value: Any, comment: str) -> None:
        self.entries[setting] = Entry(value, comment)

    def set_default(self, setting: str, value: Any, comment: str) -> None:
        """Set what the imported command leaves to the other trainer's default, where ours is another."""
        if setting not in self.entries and value != self._our_default(setting):
            self.set(setting, value, comment)

    def value(self, setting: str) -> Any:
        entry = self.entries.get(setting)
        return entry.value if entry is not None else self._our_default(setting)

    def _our_default(self, setting: str) -> Any:
        section, _, name = setting.partition(".")
        loss = self.entries.get("algorithm.loss_type")
        preset = LOSS_TYPES.get(loss.value) if loss is not None else None
        if section == "algorithm" and preset is not None and name in preset.settings:
            return preset.settings[name]
        return field_of(setting).get_default(call_default_factory=True)

    def names(self, option: str) -> bool:
        """Whether an option is named in what is written so far."""
        comments = (f"{setting} {entry.comment}" for setting, entry in self.entries.items())
        return any(option in text for text in (*comments, *self.differs, *self.not_needed))

    def text(self, title: str) -> str:
        """The whole file. Raises UsageError when it is no run file that can be started."""
        content = "\n".join(self._lines(title)) + "\n"
        _check(content)
        return content

    def _lines(self, title: str) -> Iterator[str]:
        yield from _commented(title)
        yield "# Start the servers, then the run:"
        yield from (f"#   {line}" for line in self.starts)
        yield from self._notes("What is otherwise than in the imported command", self.differs)
        yield from self._notes("What is not needed", self.not_needed)
        yield from _nested({name: self.entries[name] for name in sorted(self.entries, key=_place)})

    @staticmethod
    def _notes(title: str, notes: list[str]) -> Iterator[str]:
        if notes:
            yield f"# {title}:"
            for note in notes:
                yield from _commented(f"- {note}", before="#   ", hanging="  ")


def field_of(setting: str) -> FieldInfo:
    """The field of the model that a setting is."""
    model: Any = RunConfig
    *sections, name = setting.split(".")
    for section in sections:
        annotation = model.model_fields[section].annotation
        model = next(
            part
            for part in (annotation, *get_args(annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        )
    found: FieldInfo = model.model_fields[name]
    return found


def checked(setting: str, value: Any, shown: str) -> Any:
    """`value` in the type and the bounds of a setting. Raises UsageError."""
    described = field_of(setting)
    bounded: Any = Annotated[described.annotation, described]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(bounded)
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"{shown}: {setting}: {problem['msg'].removeprefix('Value error, ')}") from error


def _check(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(content, encoding="utf-8")
        values = read_yaml(file, RunConfig)
    try:
        RunConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(
            f"what the command asks for is no run that we could start: {explain(error, Keys(RunConfig))}",
            hint="change the option in the command, and import it again",
        ) from error


def _place(setting: str) -> list[int]:
    """Where a setting stands among all: as in the model, with settings of no section before the sections."""
    model: Any = RunConfig
    place = []
    for part in setting.split("."):
        place.append(list(model.model_fields).index(part))
        annotation = model.model_fields[part].annotation
        inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    return place


def _nested(entries: Mapping[str, Entry]) -> Iterator[str]:
    opened: list[str] = []
    for setting, entry in entries.items():
        *sections, name = setting.split(".")
        while opened != sections[: len(opened)]:
            opened.pop()
        for section in sections[len(opened) :]:
            yield f"{'  ' * len(opened)}{section}:"
            opened.append(section)
        indent = "  " * len(opened)
        line = f"{indent}{name}: {flow(entry.value)}"
        comment = " ".join(entry.comment.split())
        if comment and len(line) + len(comment) > 116:
            yield from _commented(comment, before=f"{indent}# ")
            yield line
        else:
            yield f"{line}  # {comment}" if comment else line


def flow(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _commented(text: str, *, before: str = "# ", hanging: str = "") -> list[str]:
    """Comment lines of at most 120 characters, those behind the first one with `hanging` blanks."""
    return textwrap.wrap(
        text, 120, initial_indent=before, subsequent_indent=before + hanging, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
