"""The names of all settings, and the nearest one to a name that is none."""

import difflib
from collections.abc import Iterator, Sequence
from typing import get_args, get_origin

from pydantic import BaseModel

from .lora import REFUSED
from .other_names import OTHER_NAMES

_ANY = "*"
"""Stands for the user's own name of a dataset in a name such as `data.datasets.*.ratio`."""


class Keys:
    """The settings of a model. `switches` are flags of the command that are no settings, such as `dry-run`."""

    def __init__(self, model: type[BaseModel], switches: Sequence[str] = ()):
        everywhere = dict(_dotted(model))
        self.known = {name for name in everywhere if _ANY not in name}
        """The names that a flag may have: settings and sections, `rollout` and `rollout.num_generations`."""
        self.mappings = {name for name in self.known if everywhere[name]}
        """Settings whose keys are the user's own: `reward.params`, `data.datasets`."""
        self.below_own_keys = [name.split(".") for name in everywhere if _ANY in name]
        self.switches = list(switches)

    def is_section(self, name: str) -> bool:
        return any(known.startswith(f"{name}.") for known in self.known)

    def is_in_free_mapping(self, name: str) -> bool:
        """Whether `name` is a key of a mapping whose values are free, too, such as `reward.params.format`."""
        parent = name.rpartition(".")[0]
        return parent in self.mappings and not any(".".join(parts).startswith(parent) for parts in self.below_own_keys)

    def mapping_around(self, name: str) -> str | None:
        """The mapping with the user's own keys that `name` lies in."""
        return next((mapping for mapping in self.mappings if name.startswith(f"{mapping}.")), None)

    def of_section(self, name: str) -> str:
        """The setting of a section that is most likely meant by its name alone."""
        inside = sorted(key for key in self.known if key.startswith(f"{name}."))
        return OTHER_NAMES[name] if OTHER_NAMES.get(name) in inside else inside[0]

    def nearest(self, name: str, *, prefix: str = "") -> str | None:
        """A question that offers the nearest names, each after `prefix`; flags (`--`) may be switches, too."""
        plain = name.replace("-", "_").lower()
        section, _, last = plain.rpartition(".")
        if section.endswith("lora") and last in REFUSED:
            return REFUSED[last]
        found = self._switch(plain) if prefix == "--" else []
        found = found or self._nearest(plain)
        return f"did you mean {' or '.join(prefix + one for one in found[:3])}?" if found else None

    def _switch(self, name: str) -> list[str]:
        plain = {switch.replace("-", ""): switch for switch in self.switches}
        close = difflib.get_close_matches(name.replace("_", ""), plain, n=1, cutoff=0.8)
        if not close and name == "resume_from_checkpoint":
            close = [switch for switch in plain if switch == "resume"]
        return [plain[one] for one in close]

    def _nearest(self, name: str) -> list[str]:
        parent, _, last = name.rpartition(".")
        if name in self.known:
            return [name]
        if same := [key for key in sorted(self.known) if key.rpartition(".")[2] == last]:
            return same
        if (known_as := OTHER_NAMES.get(last)) in self.known:
            return [str(known_as)]
        beside = self._beside(parent)
        return (
            [f"{parent}.{one}" if parent else one for one in _close(last, beside, cutoff=0.6)]
            or _close(name, sorted(self.known), cutoff=0.6)
            or self._by_last_part(last)
        )

    def _beside(self, parent: str) -> list[str]:
        """The settings of the section `parent`."""
        depth = len(parent.split(".")) if parent else 0
        beside = [key.rpartition(".")[2] for key in self.known if key.rpartition(".")[0] == parent]
        for parts in self.below_own_keys:
            fits = len(parts) == depth + 1 and all(
                part in (_ANY, given) for part, given in zip(parts, parent.split("."), strict=False)
            )
            if fits:
                beside.append(parts[-1])
        return sorted(beside)

    def _by_last_part(self, last: str) -> list[str]:
        parts = {key.rpartition(".")[2] for key in self.known}
        close = _close(last, sorted(parts), cutoff=0.75)
        return [key for key in sorted(self.known) if key.rpartition(".")[2] in close]


def _close(name: str, names: Sequence[str], *, cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, names, n=1, cutoff=cutoff)


def _dotted(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """The names of all settings and sections, and whether they are mappings with the user's own keys."""
    for name, field in model.model_fields.items():
        is_mapping = get_origin(field.annotation) is dict
        yield prefix + name, is_mapping
        for part in get_args(field.annotation) or (field.annotation,):  # a section may be absent: Section | None
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _dotted(part, f"{prefix}{name}.{_ANY}." if is_mapping else f"{prefix}{name}.")
