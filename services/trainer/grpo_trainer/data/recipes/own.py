"""A user's own recipe, `FILE.py:NAME`: a function from a row to its prompt, such as people write for `dataset.map`.

It returns `{"prompt": text or messages}` and may return more columns, which rewards then read. They are added to those
of the row, as `dataset.map` does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...errors import UsageError
from ...extension import failure_of, named
from ..values import Row, json_row

PROMPT_COLUMN = "prompt"
HINT = 'return {"prompt": "…"} or {"prompt": [{"role": "user", "content": "…"}]}, and more columns for the rewards'


def converted(rows: Iterable[Row], recipe: str, *, dataset: str) -> Iterator[Row]:
    """Yield `rows` as the user's `recipe` makes them.

    Raises UsageError, when it comes to that row, for a recipe that raises or returns no prompt.
    """
    function: Callable[[Row], Any] = named(recipe, {}, setting="data.recipe")
    for number, row in enumerate(rows, start=1):
        where = f"dataset {dataset}, row {number}: data.recipe"
        try:
            made = function(dict(row))  # which may take columns out of it
        except Exception as error:
            raise UsageError(
                f"{where} {failure_of(recipe, error)}", hint=f"the row has {', '.join(row) or 'no columns'}"
            ) from error
        if not isinstance(made, Mapping):
            raise UsageError(f"{where} {recipe} returned a value of type {type(made).__name__}", hint=HINT)
        if made.get(PROMPT_COLUMN) is None:
            raise UsageError(f"{where} {recipe} returned no prompt, only {', '.join(map(str, made))}", hint=HINT)
        yield {**row, **json_row(made, f"{where} {recipe} returned a row that cannot be kept")}
