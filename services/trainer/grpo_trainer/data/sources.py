"""Rows of a dataset, from files, folders and the Hugging Face Hub, as plain JSON values.

Every column keeps its name. What JSON lacks is converted: dates to ISO text, decimals to text, bytes to base64 text,
NaN and infinity to null. In a CSV file a column becomes numbers, lists or booleans when every cell that is not empty
reads as JSON (`12`, `[44, 19, 35]`, `true`), and an empty cell is null there; every other column stays text.
"""

import base64
import csv
import datetime
import decimal
import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import UnavailableError, UsageError, storage_error_class

Row = dict[str, Any]

_KNOWN_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def read_rows(dataset: str, split: str) -> list[Row]:
    """The rows of `dataset`: a file, a folder or a Hub name, with `#N` behind it the first N of them.

    `split` chooses among the splits of a Hub dataset (`org/name`, or `org/name:subset`), and among the files of a
    folder whose files are named after splits. Raises UsageError.
    """
    name, limit = _split_limit(dataset)
    path = Path(name).expanduser()
    if path.is_dir():
        rows = _read_folder(path, split)
    elif path.exists():
        rows = _read_file(path)
    elif _looks_like_a_path(name):
        raise UsageError(f"dataset {name} does not exist", hint=_nearest_file(path))
    else:
        rows = _read_hub(name, split)
    if not rows:
        raise UsageError(f"dataset {name} has no rows", hint="name a dataset with at least one row")
    return rows[:limit]


def _split_limit(dataset: str) -> tuple[str, int | None]:
    name, mark, number = dataset.rpartition("#")
    if not mark or Path(dataset).exists():
        return dataset, None
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"dataset {dataset}: `#{number}` is no number of rows", hint=f"write {name}#500")
    return name, int(number)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or Path(name).suffix in READERS or _HUB_NAME.fullmatch(name) is None


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return f"{path.parent} holds {', '.join(names[:8]) or 'nothing'}"


# Files


def _read_file(path: Path) -> list[Row]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"dataset {path}: the format {path.suffix or 'without an ending'} is unknown",
            hint=f"known are {', '.join(READERS)}",
        )
    try:
        return [{name: json_value(value) for name, value in row.items()} for row in reader(path)]
    except UnicodeDecodeError as error:
        raise UsageError(f"dataset {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise storage_error_class(error)(f"dataset {path} cannot be read: {error.strerror or error}") from error


def _read_json_lines(path: Path) -> Iterable[Row]:
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
    return [_object(path, f"row {number}", row) for number, row in enumerate(content, start=1)]


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


def _read_csv(path: Path) -> Iterable[Row]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            cells = []
            for row in reader:
                if row and len(row) != len(names):
                    raise UsageError(
                        f"dataset {path}, line {reader.line_num}: {len(row)} cells, the first line names {len(names)}",
                        hint="put cells that hold commas or line breaks between quotation marks",
                    )
                if row:
                    cells.append(row)
        except csv.Error as error:
            raise UsageError(f"dataset {path}, line {reader.line_num}: {error}") from error
    columns = [_typed_cells([row[number] for row in cells]) for number in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _typed_cells(cells: list[str]) -> list[Any]:
    """The values of one CSV column: JSON if all of its cells are, else the text."""
    try:
        values = [json.loads(cell, parse_constant=_refuse_constant) if cell.strip() else None for cell in cells]
    except ValueError:
        return cells
    # A quoted cell that is JSON text ("\"yes\"") is somebody's text: its quotation marks are part of it.
    return cells if any(isinstance(value, str) for value in values) or not any(map(str.strip, cells)) else values


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _read_parquet(path: Path) -> Iterable[Row]:
    try:
        rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UsageError(f"dataset {path} is no readable Parquet file: {error}") from error
    return rows


READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


# Folders and the Hub


def _read_folder(folder: Path, split: str) -> list[Row]:
    """Where files are named after splits (`train.jsonl`, `test-00000-of-00002.parquet`), those of `split`; else all."""
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return _read_saved(folder, split)
    files = sorted(path for path in folder.rglob("*") if path.suffix in READERS and path.is_file())
    splits = {path: _split_of(path.relative_to(folder)) for path in files}
    named = {name for name in splits.values() if name is not None}
    if named:
        files = [path for path in files if splits[path] == split]
        if not files:
            raise UsageError(
                f"dataset {folder} has no split {split}", hint=f"its files are of {', '.join(sorted(named))}"
            )
    if not files:
        raise UsageError(f"dataset {folder} holds no file of a known format", hint=f"known are {', '.join(READERS)}")
    return [row for path in files for row in _read_file(path)]


def _split_of(path: Path) -> str | None:
    for part in path.parts:
        word = re.split(r"[-_.]", part)[0]
        if word in _KNOWN_SPLITS:
            return word
    return None


def _read_saved(folder: Path, split: str) -> list[Row]:
    """A folder that `datasets` wrote with `save_to_disk`."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise UsageError(f"dataset {folder} cannot be loaded: {_first_line(error)}") from error
    return _plain_rows(_one_split(saved, str(folder), split))


def _read_hub(name: str, split: str) -> list[Row]:
    import datasets

    repository, _, subset = name.partition(":")
    try:
        loaded = datasets.load_dataset(repository, subset or None)
    # The library raises a dozen types here, from its own to those of three HTTP clients: all mean the same to the user.
    except Exception as error:
        raise UnavailableError(
            f"dataset {name} is no local file, and the Hugging Face Hub did not give it: {_first_line(error)}",
            hint="check the name and the network (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE), or give a path to a file",
        ) from error
    return _plain_rows(_one_split(loaded, name, split))


def _one_split(loaded: Any, name: str, split: str) -> Any:
    if not isinstance(loaded, Mapping):
        return loaded
    if split not in loaded:
        raise UsageError(f"dataset {name} has no split {split}", hint=f"it has {', '.join(map(str, loaded))}")
    return loaded[split]


def _plain_rows(dataset: Any) -> list[Row]:
    return [{name: json_value(value) for name, value in row.items()} for row in dataset.with_format(None)]


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


# Values


def json_value(value: Any) -> Any:
    """`value` as JSON would give it back; see the top of this file for what is converted how."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [json_value(item) for item in value]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
    # numpy's and pyarrow's scalars and arrays.
    for method in ("tolist", "as_py", "item"):
        if callable(convert := getattr(value, method, None)):
            return json_value(convert())
    return str(value)
