"""What the commands print: tables for people, JSON for programs, messages to stderr."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..faults import printable

PIPE_COLUMNS = 140
"""Width of tables that go to a file or a pipe."""
NUMBER_COLUMNS = 100
"""What a table of numbers needs: a terminal that is narrower breaks its lines, and still shows every number."""


def console(least_columns: int = 0) -> Console:
    """A console for stdout. Texts come from completions: no markup of theirs is obeyed."""
    width = max(shutil.get_terminal_size().columns, least_columns) if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def print_json(value: Mapping[str, Any]) -> None:
    """The only thing on stdout. ASCII, so that no terminal setting can spoil it."""
    json.dump(value, sys.stdout, allow_nan=False, indent=1)
    sys.stdout.write("\n")


def say(message: str) -> None:
    """Print to stderr."""
    print(printable(message), file=sys.stderr, flush=True)


def table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1) -> Table:
    """The first `left` columns hold words, the others numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for position, name in enumerate(names):
        if position < left:
            made.add_column(name, overflow="fold")
        else:
            made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: Any) -> str:
    """A number with four significant places; a dash for what there is not."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def shortened(text: str, characters: int = 100) -> str:
    """`repr`, which no control character survives, of the beginning, with how much there was."""
    shown = repr(text[:characters])
    return shown if len(text) <= characters else f"{shown}… ({len(text):,} characters)"
