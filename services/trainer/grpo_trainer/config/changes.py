"""What a resumed run has otherwise than before."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .run_config import RunConfig


def changed_settings(before: Path, config: RunConfig) -> list[str]:
    """One line for each setting of `config` that the run file `before` has with another value; none where there is no
    such file. Settings that only one of them has are those of another version of the trainer."""
    if not before.is_file():
        return []
    old = dict(_flat(yaml.safe_load(before.read_text(encoding="utf-8")) or {}))
    new = dict(_flat(config.model_dump(mode="json")))
    return [f"{name} is {new[name]}, was {old[name]}" for name in new if name in old and old[name] != new[name]]


def _flat(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
