"""Changes: the settings that a resumed run has otherwise than before."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from .run_config import RunConfig


def changed_settings(before: Path, config: RunConfig) -> list[str]:
    """One line for each setting of `config` that has another value in the run file `before`; none where that cannot be
    read. What the file does not have is of another version of the trainer."""
    try:
        old = yaml.safe_load(before.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    return list(changes(old, config)) if isinstance(old, Mapping) else []


def changes(old: Mapping[str, Any], section: BaseModel, above: str = "") -> Iterator[str]:
    """Yield a line for each setting of `section` that has another value in `old`, a section as JSON."""
    plain = section.model_dump(mode="json")
    for name in (name for name in plain if name in old and f"{above}{name}" != "run_dir"):  # a folder may move
        setting, value = f"{above}{name}", getattr(section, name)
        if isinstance(value, BaseModel) and isinstance(old[name], Mapping):
            yield from changes(old[name], value, f"{setting}.")
        elif isinstance(value, Mapping) and isinstance(old[name], Mapping):
            yield from _changed_entries(old[name], value, plain[name], f"{setting}.")
        elif old[name] != plain[name]:
            shown = not any(isinstance(one, Mapping) for one in (old[name], plain[name]))
            yield f"{setting} is {plain[name]}, was {old[name]}" if shown else f"{setting} is another one"


def _changed_entries(
    old: Mapping[str, Any], new: Mapping[str, Any], plain: Mapping[str, Any], above: str
) -> Iterator[str]:
    """The entries of a mapping whose keys are the user's. Their values are not shown: parameters of somebody's own code
    may be secrets."""
    for key in sorted(old.keys() | plain.keys()):
        if key not in plain or key not in old:
            yield f"{above}{key} is {'new' if key in plain else 'gone'}"
        elif isinstance(new.get(key), BaseModel) and isinstance(old[key], Mapping):
            yield from changes(old[key], new[key], f"{above}{key}.")
        elif old[key] != plain[key]:
            yield f"{above}{key} is another one"
