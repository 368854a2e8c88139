"""Rows of one file, read as a stream: .jsonl, .json, .csv (csv_file.py) and .parquet.

Only a .json file is in memory as a whole, because a JSON document has no rows before its end.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import UsageError, storage_error_class
from .csv_file import read_csv
from .json_text import ObjectWithKeyTwice, first_twice, parse_json
from .values import Row, json_row

_PARQUET_ROWS = 256
"""Rows of a Parquet file that are Python objects at the same time."""


def read_file(path: Path) -> Iterator[Row]:
    """Yield the rows of `path`. Raises UsageError, for a mistake in a row when the reading comes to that row."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"dataset {path}: the format {path.suffix or 'without an ending'} is unknown",
            hint=f"known are {', '.join(READERS)}",
        )
    try:
        for number, row in enumerate(reader(path), start=1):
            yield json_row(row, f"dataset {path}, row {number}")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"dataset {path}{_undecodable_line(path)}: not UTF-8 text: {error.reason}", hint="save the file as UTF-8"
        ) from error
    except OSError as error:
        raise storage_error_class(error)(f"dataset {path} cannot be read: {error.strerror or error}") from error


def _undecodable_line(path: Path) -> str:
    """The first line that is no UTF-8; the decoder of a file counts bytes from somewhere inside it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f", line {number}"
    return ""


def _read_json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _object(path, f"line {number}", _parse_json(path, line.strip(), first_line=number))


def _read_json(path: Path) -> Iterable[Row]:
    """A list of objects; an object with one list of objects inside (`{"data": [...]}`); or JSON lines."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return []
    try:
        content = _parse_json(path, text, first_line=1)
    except UsageError as error:
        lines = text.splitlines()
        if len(lines) > 1 and lines[0].strip().endswith("}"):
            return _read_json_lines(path)
        raise error
    if isinstance(content, ObjectWithKeyTwice):
        raise UsageError(f"dataset {path}: its object has the key {content.key} twice", hint="leave one of them out")
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]) else [content]
    if not isinstance(content, list):
        raise UsageError(f"dataset {path} is no list of objects", hint='write [{"prompt": "…"}, …]')
    return (_object(path, f"row {number}", row) for number, row in enumerate(content, start=1))


def _parse_json(path: Path, text: str, *, first_line: int) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UsageError(f"dataset {path}, line {line}: no JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise UsageError(f"dataset {path}, from line {first_line} on: no JSON: {error}") from error


def _object(path: Path, where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise UsageError(
            f"dataset {path}, {where}: a {type(value).__name__} where an object is expected",
            hint='every row is an object such as {"prompt": "…"}',
        )
    return value


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if (twice := first_twice(file.schema_arrow.names)) is not None:
                raise UsageError(f"dataset {path} has two columns {twice}", hint="rename one of them")
            first_row = 1
            for batch in file.iter_batches(_PARQUET_ROWS):
                try:
                    yield from batch.to_pylist()
                except ValueError as error:  # bytes that are no UTF-8, or two fields of one name
                    if (fault := _fault_in(batch, f"dataset {path}", first_row)) is not None:
                        raise fault from error
                    raise
                first_row += batch.num_rows
    except pyarrow.ArrowException as error:
        raise UsageError(f"dataset {path} is no readable Parquet file: {error}") from error


def _fault_in(batch: pyarrow.RecordBatch, dataset: str, first_row: int) -> UsageError | None:
    """The first value of a batch that is none in Python."""
    for number in range(batch.num_rows):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column[number].as_py()
            except UnicodeDecodeError as error:
                return UsageError(f"{dataset}, row {first_row + number}, column {name}: not UTF-8 text: {error.reason}")
            except ValueError as error:
                return UsageError(f"{dataset}, row {first_row + number}, column {name}: {error}")
    return None


READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": read_csv,
    ".parquet": _read_parquet,
}
