"""Rows of a .csv file, read as a stream. Its first line names the columns.

A column becomes lists, objects or booleans when every cell that is not empty reads as JSON of one (`[44, 19, 35]`,
`true`), and an empty cell is null there; every other column stays text. So do numbers: `1.10`, `1e400` and `01234` are
what somebody wrote, and a gold answer is text.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .json_text import first_twice, parse_json
from .values import Row


def read_csv(path: Path) -> Iterator[Row]:
    """Yield the rows. The file is read twice: whether a column is JSON is known only after its last cell."""
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
            if (twice := first_twice(names)) is not None:
                which = f"the column {twice} stands twice" if twice else "two columns have no name"
                raise UsageError(f"dataset {path}, line {reader.line_num}: {which}", hint="rename one of them")
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
    return parse_json(cell, constants=False) if cell.strip() else None
