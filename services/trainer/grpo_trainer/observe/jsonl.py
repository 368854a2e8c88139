"""Files of one JSON object per line, each with its step, that grow while a run goes on and are cut back on resume."""

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..atomic_file import write_text_atomically

log = logging.getLogger(__name__)

_STEP_FIRST = re.compile(rb'\{"step": (\d+)[,}]')


class StepFile:
    """An append-only file of steps. Records that `append` has written survive a killed process."""

    def __init__(self, path: Path, *, keep_through_step: int | None):
        """Open `path`. None drops the lines of an earlier run; a number keeps the steps up to it.

        A run that is resumed at step k does the steps after k again: without the cut they would be in the file twice.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if keep_through_step is None:
            self._file: BinaryIO = path.open("wb")
        else:
            cut_back(path, keep_through_step)
            self._file = path.open("ab")
        self.path = path

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records, each with its `step` as first key, and flush once. Raises OSError, as on a full disk."""
        self._file.write(b"".join(encode(record) for record in records))
        self._file.flush()

    def add_to_last(self, record: Mapping[str, Any]) -> None:
        """Add the keys of `record` to the last record if it is of the same step; else append `record`."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        last = json.loads(lines[-1]) if lines and step_of(lines[-1]) == record["step"] else {}
        if not last:
            self.append([record])
            return
        write_text_atomically(self.path, b"".join([*lines[:-1], encode({**last, **record})]).decode())
        self._file.close()
        self._file = self.path.open("ab")

    def close(self) -> None:
        self._file.close()


def encode(record: Mapping[str, Any]) -> bytes:
    """Encode one line. Numbers that JSON lacks become null; values of other types become text."""
    try:
        text = json.dumps(record, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(record), allow_nan=False, ensure_ascii=False)
    # A tokenizer may cut a character in half; that text has no UTF-8 form.
    return text.encode("utf-8", "replace") + b"\n"


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (step, line) of every whole line; a missing file has none. Broken lines are skipped and logged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            step = step_of(line)
            if step is None:
                log.warning("%s: a line of %d bytes is not the record of a step; skipped", path, len(line))
            else:
                yield step, line


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, one at a time."""
    for _, line in read_lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            log.warning("%s: a line of %d bytes is broken; skipped", path, len(line))
        else:
            yield record


def step_of(line: bytes) -> int | None:
    """Return the step of a line; None for a torn or foreign line. A regex reads our own lines without parsing them."""
    if not line.endswith(b"\n"):
        return None
    if match := _STEP_FIRST.match(line):
        return int(match[1])
    try:
        record = json.loads(line)
    except ValueError:
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) else None


def cut_back(path: Path, last_step: int) -> None:
    """Drop all lines from the first later step on, and a last line that a kill cut off."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for line in file:
            step = step_of(line)
            if not line.endswith(b"\n") or (step is not None and step > last_step):
                break
            end += len(line)
    if end < path.stat().st_size:
        log.info("%s: dropping the lines of steps after %d, which are done again", path.name, last_step)
        os.truncate(path, end)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)
