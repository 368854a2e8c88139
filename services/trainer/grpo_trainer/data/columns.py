"""Which columns a dataset must have, and whether its rows have them."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UsageError
from .recipes.template import MISSING, Template, paths_of, value_at

log = logging.getLogger(__name__)


class ColumnCheck:
    """Every row has every needed column, with a value. `finish` knows after all rows whether a column is missing.

    With a `template`, its names are needed: those that look like names, and others once a row has such a column.
    """

    def __init__(self, needed: Sequence[str], *, dataset: str, needed_by: str, template: Template | None = None):
        self.needed, self.dataset, self.needed_by, self.template = list(needed), dataset, needed_by, template
        self.possible = []
        if template is not None:
            self.needed, self.possible = template.names(required=True), template.names(required=False)
        self.known: dict[str, None] = {}
        """The columns of all rows, and for a row without a value the paths into its objects."""
        self.seen: set[str] = set()
        self.row_without: dict[str, int] = {}
        """The first row without a value in a column, from 1."""

    @property
    def failed(self) -> bool:
        return any(name in self.row_without for name in self.needed)

    def add(self, rows: Sequence[Mapping[str, Any]], *, first_row: int) -> None:
        for number, row in enumerate(rows, start=first_row):
            self.known.update(dict.fromkeys(row))
            for name in (*self.needed, *self.possible):
                # A prompt column is a column; a path stands in templates.
                value = row.get(name, MISSING) if self.template is None else value_at(row, name)
                if value is not MISSING:
                    self.seen.add(name)
                if value is MISSING or value is None:
                    self._add_row_without(name, row, number)

    def _add_row_without(self, name: str, row: Mapping[str, Any], number: int) -> None:
        if name not in self.row_without:
            self.row_without[name] = number
            self.known.update(dict.fromkeys(paths_of(row) if self.template is not None else row))

    def finish(self) -> None:
        """Raise UsageError for the first needed column that fails, naming the nearest column, or the row."""
        for name in (*self.needed, *(name for name in self.possible if name in self.seen)):
            if name not in self.seen:
                raise self._no_column(name)
            if name in self.row_without:
                raise UsageError(
                    f"dataset {self.dataset}, row {self.row_without[name]} has no value in column {name}, which "
                    f"{self.needed_by} needs",
                    hint="fill it in or leave the row out",
                )
        if self.template is not None:
            self._finish_template(self.template)

    def _no_column(self, name: str) -> UsageError:
        inside = [path for path in self.known if path.endswith(f".{name}")]
        close = inside or difflib.get_close_matches(name, self.known, n=2, cutoff=0.5)
        nearest = f"; the nearest: {', '.join(close[:2])}" if close else ""
        as_text = "" if self.template is None else f"; {{{{{name}}}}} stands for the text {{{name}}}"
        return UsageError(
            f"dataset {self.dataset} has no column {name}, which {self.needed_by} needs{nearest}",
            hint=f"its columns are {self._columns()}{as_text}",
        )

    def _finish_template(self, template: Template) -> None:
        in_latex = [name for name in template.latex if name in self.known]
        if not self.seen:
            because = f": {{{in_latex[0]}}} is LaTeX there, {{{{{{{in_latex[0]}}}}}}} fills it in" if in_latex else ""
            raise UsageError(
                f"{self.needed_by} fills in no column of the dataset {self.dataset}{because}",
                hint=f"write the name of a column in braces; its columns are {self._columns()}",
            )
        for name in in_latex:
            log.warning(
                "%s: {%s} stays text, for it stands behind LaTeX, though the dataset %s has such a column; {{{%s}}} "
                "fills it in there, {{%s}} is the text",
                *(self.needed_by, name, self.dataset, name, name),
            )

    def _columns(self) -> str:
        return ", ".join(name for name in self.known if name) or "none"


def check_columns(rows: Sequence[Mapping[str, Any]], needed: Sequence[str], *, dataset: str, needed_by: str) -> None:
    """Check all rows at once; see `ColumnCheck`."""
    check = ColumnCheck(needed, dataset=dataset, needed_by=needed_by)
    check.add(rows, first_row=1)
    check.finish()
