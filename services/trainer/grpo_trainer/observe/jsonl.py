"""Files of one JSON object per line, each with its step, that grow while a run goes on and are cut back on resume."""

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_proto.log_parts import older_parts, parts_of

from ..atomic_file import write_text_atomically
from .run_files import METRICS_FILE

log = logging.getLogger(__name__)

_STEP_FIRST = re.compile(rb'\{"step": (\d+)[,}]')


class StepFile:
    """An append-only file of steps. Records that `append` has written survive a killed process.

    On a full disk the file keeps its whole lines, and no half of one. Lines that could not be written are tried again
    by the next `append` and by `close`: a checkpoint that was removed meanwhile may have left room for them.
    All methods that write raise OSError with the file's name.
    """

    def __init__(self, path: Path, *, keep_through_step: int | None):
        """Open `path`. None is for a new run, which has no lines yet; a number keeps the steps up to it.

        A run that is resumed at step k does the steps after k again: without the cut they would be in the file twice.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if keep_through_step is not None:
            cut_back(path, keep_through_step)
        self.path, self._unwritten = path, b""
        self._open()

    @property
    def num_bytes(self) -> int:
        """Size of what is written."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records, each with its `step` as first key."""
        self._unwritten += b"".join(encode(record) for record in records)
        self._write()

    def add_to_last(self, record: Mapping[str, Any]) -> None:
        """Add the keys of `record` to the last record if it is of the same step; else append `record`."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        last = json.loads(lines[-1]) if lines and step_of(lines[-1]) == record["step"] else {}
        if not last:
            self.append([record])
            return
        write_text_atomically(self.path, b"".join([*lines[:-1], encode({**last, **record})]).decode())
        self._file.close()
        self._open()

    def begin_anew(self, *, older: Path) -> None:
        """Name what is written `older`, and go on with an empty file."""
        with self._named():
            self.path.rename(older)
            self._file.close()
            self._open()

    def close(self) -> None:
        """Logs how many lines are lost when there is still no room for them."""
        try:
            if self._unwritten:
                self._write()
        except OSError:
            log.error("%s: its last %d lines are lost", self.path, self._unwritten.count(b"\n"))
            raise
        finally:
            self._file.close()

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)

    def _write(self) -> None:
        end = self.num_bytes
        with self._named():
            try:
                left = memoryview(self._unwritten)
                while left:
                    left = left[self._file.write(left) :]
            except OSError:
                if end < self.num_bytes:
                    self._file.truncate(end)
                raise
        self._unwritten = b""

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in an error: a write's own has no name."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error


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


def read_lines_of_parts(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log in parts, as `read_lines` yields them."""
    for part in parts_of(path):
        yield from read_lines(part)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, one at a time."""
    for _, line in read_lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            log.warning("%s: a line of %d bytes is broken; skipped", path, len(line))
        else:
            yield record


def evaluation_of(run_dir: Path, step: int) -> dict[str, float]:
    """The metrics of the evaluation after `step`; empty where metrics.jsonl has none."""
    last = next((record for record in read_records(run_dir / METRICS_FILE) if record.get("step") == step), {})
    return {name: value for name, value in last.items() if name.startswith(("eval_", "eval/")) and value is not None}


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


def cut_back_older_parts(path: Path, last_step: int) -> None:
    """Cut back the parts before `path`, of which nothing is left: the newest first, until one has lines to keep."""
    for part in reversed(older_parts(path)):
        cut_back(part, last_step)
        if part.stat().st_size:
            break  # it begins with a step to keep, so that no part before it has a later step
        part.unlink()


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
