"""Files of one JSON object per line, each with its step, that grow while a run goes on and are cut back on resume."""

import io
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..atomic_file import write_text_atomically

log = logging.getLogger(__name__)

_STEP_FIRST = re.compile(rb'\{"step": (\d+)[,}]')


class StepFile:
    """An append-only file of steps. Records that `append` has written survive a killed process.

    A file that has `part_bytes` rolls over before the next step: NAME.jsonl becomes NAME-1.jsonl, NAME-2.jsonl and so
    on; the newest part keeps the name.
    """

    def __init__(self, path: Path, *, keep_through_step: int | None, part_bytes: int | None = None):
        """Open `path`. None puts the file of an earlier run aside; a number keeps the steps up to it, in all parts.

        A run that is resumed at step k does the steps after k again: without the cut they would be in the file twice.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if keep_through_step is None:
            put_aside(path)
        else:
            cut_back(path, keep_through_step)
        self.path, self.part_bytes = path, part_bytes
        self._file = self._open()

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records, each with its `step` as first key.

        Raises OSError, as on a full disk, and leaves none of them: half of a line would hide the next one.
        """
        lines = b"".join(encode(record) for record in records)
        end = os.fstat(self._file.fileno()).st_size
        if self.part_bytes and end and end + len(lines) > self.part_bytes:
            self._roll_over()
            end = 0
        try:
            written = 0
            while written < len(lines):
                written += self._file.write(lines[written:]) or 0
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise

    def add_to_last(self, record: Mapping[str, Any]) -> None:
        """Add the keys of `record` to the last record if it is of the same step; else append `record`."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        last = json.loads(lines[-1]) if lines and step_of(lines[-1]) == record["step"] else {}
        if not last:
            self.append([record])
            return
        write_text_atomically(self.path, b"".join([*lines[:-1], encode({**last, **record})]).decode())
        self._file.close()
        self._file = self._open()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> io.FileIO:
        # Without a buffer: what could not be written must not be tried again when the file is closed.
        return io.FileIO(self.path, "ab")

    def _roll_over(self) -> None:
        self._file.close()
        self.path.rename(_part(self.path, len(parts(self.path))))
        self._file = self._open()


def parts(path: Path) -> list[Path]:
    """The parts of a file that are there, the oldest first. `path` itself is the newest."""
    numbers = (found.stem.removeprefix(f"{path.stem}-") for found in path.parent.glob(f"{path.stem}-*{path.suffix}"))
    older = [_part(path, number) for number in sorted(int(number) for number in numbers if number.isdigit())]
    return [*older, *([path] if path.exists() else [])]


def put_aside(path: Path) -> None:
    """Rename what an earlier run has left under this name: nothing that a run has written is lost to a new one."""
    for old in parts(path):
        if old.stat().st_size == 0:
            old.unlink()
            continue
        number = 1
        while (aside := old.with_name(f"{old.name}.before-{number}")).exists():
            number += 1
        old.rename(aside)
        log.warning("%s is of an earlier run: it is %s now", old.name, aside.name)


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def encode(record: Mapping[str, Any]) -> bytes:
    """Encode one line. Numbers that JSON lacks become null; values of other types become text."""
    try:
        text = json.dumps(record, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(record), allow_nan=False, ensure_ascii=False)
    # A tokenizer may cut a character in half; that text has no UTF-8 form.
    return text.encode("utf-8", "replace") + b"\n"


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (step, line) of every whole line of all parts; a missing file has none. Skips and logs broken lines.

    The file may roll over meanwhile: a part keeps its content under its new name.
    """
    for part in parts(path):
        try:
            file = part.open("rb")
        except FileNotFoundError:
            continue
        with file:
            for line in file:
                step = step_of(line)
                if step is None:
                    log.warning("%s: a line of %d bytes is not the record of a step; skipped", part, len(line))
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
    """Drop all lines from the first later step on, in all parts, and a last line that a kill cut off."""
    found = parts(path)
    for number, part in enumerate(found):
        end = _end_of(part, last_step)
        if end == part.stat().st_size:
            continue
        log.info("%s: dropping the lines of steps after %d, which are done again", part.name, last_step)
        os.truncate(part, end)
        for later in found[number + 1 :]:
            later.unlink()
        if part != path:
            part.rename(path)
        return


def _end_of(path: Path, last_step: int) -> int:
    """Where the lines up to `last_step` end, in bytes."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            step = step_of(line)
            if not line.endswith(b"\n") or (step is not None and step > last_step):
                break
            end += len(line)
    return end


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
