"""A log in parts: `completions.jsonl` is the newest, before it were `completions-part-0001.jsonl`, `…-0002` and so on.

The trainer writes them, the reward service's command reads them. A part that somebody has removed leaves a gap.
"""

import re
from collections.abc import Iterator
from pathlib import Path


def parts_of(path: Path) -> Iterator[Path]:
    """Yield the parts of the log `path`, the oldest first and `path` last, whether it is there or not.

    A part that is named while the earlier ones are read is not missed.
    """
    read: set[Path] = set()
    while new := [part for part in older_parts(path) if part not in read]:
        read.add(new[0])
        yield new[0]
    yield path


def older_parts(path: Path) -> list[Path]:
    """Return the parts of the log `path` that are complete, the oldest first."""
    return [part for _, part in sorted(_numbered(path))]


def next_older_part(path: Path) -> Path:
    """Return the name for what is in `path` now, once it is no longer the newest part."""
    number = max((number for number, _ in _numbered(path)), default=0) + 1
    return path.with_name(f"{path.stem}-part-{number:04}{path.suffix}")


def _numbered(path: Path) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{re.escape(path.stem)}-part-(\d+){re.escape(path.suffix)}")
    found = path.parent.glob("*-part-*")
    return [(int(match[1]), part) for part in found if (match := pattern.fullmatch(part.name))]
