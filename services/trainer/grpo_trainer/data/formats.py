"""Rows of one file, read as a stream: .jsonl, .json, .csv and .parquet.

In a CSV file a column becomes lists, objects or booleans when every cell that is not empty reads as JSON of one
(`[44, 19, 35]`, `true`), and an empty cell is null there; every other column stays text. So do numbers: `1.10`, `1e400`
and `01234` are what somebody wrote, and a gold answer is text. Only a .json file is in memory
as a whole, because a JSON document has no rows before its end.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import UsageError, storage_error_class
from .values import Row, json_value

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
        for row in reader(path):
            yield {name: json_value(value) for name, value in row.items()}
    except UnicodeDecodeError as error:
        raise UsageError(f"dataset {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise storage_error_class(error)(f"dataset {path} cannot be read: {error.strerror or error}") from error


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
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 and all(isinstance(row, dict) for row in lists[0]) else [content]
    if not isinstance(content, list):
        raise UsageError(f"dataset {path} is no list of objects", hint='write [{"prompt": "…"}, …]')
    return (_object(path, f"row {number}", row) for number, row in enumerate(content, start=1))


def _parse_json(path: Path, text: str, *, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UsageError(f"dataset {path}, line {line}: no JSON: {error.msg} (column {error.colno})") from error


def _object(path: Path, where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise UsageError(
            f"dataset {path}, {where}: a {type(value).__name__} where an object is expected",
            hint='every row is an object such as {"prompt": "…"}',
        )
    return value


def _read_csv(path: Path) -> Iterator[Row]:
    """Read the file twice: whether a column is JSON is known only after its last cell."""
    lines = _csv_lines(path)
    is_json = _json_columns(next(lines, []), lines)
    lines = _csv_lines(path)
    names = next(lines, [])
    for cells in lines:
        values = [_cell(cell) if typed else cell for cell, typed in zip(cells, is_json, strict=True)]
        yield dict(zip(names, values, strict=True))


def _csv_lines(path: Path) -> Iterator[list[str]]:
    """Yield the names of the columns, then the cells of every line that is not empty."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            yield names
            for cells in reader:
                if cells and len(cells) != len(names):
                    raise UsageError(
                        f"dataset {path}, line {reader.line_num}: {len(cells)} cells, the first line names "
                        f"{len(names)}",
                        hint="put cells that hold commas or line breaks between quotation marks",
                    )
                if cells:
                    yield cells
        except csv.Error as error:
            raise UsageError(f"dataset {path}, line {reader.line_num}: {error}") from error


def _json_columns(names: list[str], lines: Iterable[list[str]]) -> list[bool]:
    """Which columns are JSON: one of their cells is not empty, and each such is a list, an object or a boolean.

    A quoted cell that is JSON text ("\\"yes\\"") is somebody's text: its quotation marks are part of it.
    """
    may_be, has_value = [True] * len(names), [False] * len(names)
    for cells in lines:
        for number, cell in enumerate(cells):
            if may_be[number] and cell.strip():
                has_value[number] = True
                try:
                    may_be[number] = isinstance(_cell(cell), list | dict | bool)
                except ValueError:
                    may_be[number] = False
    return [typed and filled for typed, filled in zip(may_be, has_value, strict=True)]


def _cell(cell: str) -> Any:
    return json.loads(cell, parse_constant=_refuse_constant) if cell.strip() else None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise UsageError(f"dataset {path} has two columns {twice[0]}", hint="rename one of them")
            for batch in file.iter_batches(_PARQUET_ROWS):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UsageError(f"dataset {path} is no readable Parquet file: {error}") from error


READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
