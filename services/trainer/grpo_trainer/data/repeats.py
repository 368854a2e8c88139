"""Rows that stand more than once: twice among the training rows, or among these and the held-out rows.

Columns and token ids are compared by hashes of 64 bits: 16 bytes of memory a row, and a few seconds for a million rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .row_store import RowStore

Hashes = npt.NDArray[np.int64]
_MOST_LISTED = 5


def repeats(training: Mapping[str, RowStore], held_out: Mapping[str, RowStore]) -> Iterator[str]:
    """Yield a sentence for each set of rows with repeated ones. Sets have the names of `data`, or the empty name.

    A held-out row is one of the training rows when its columns or its prompt are theirs: the prompt is what the policy
    learns to answer, and another template may make another one of the same columns.
    """
    trained = {name: _Hashed.of(store) for name, store in training.items()}
    before = _Hashed(*np.empty((3, 0), np.int64))
    for name, hashed in trained.items():
        yield from _within(hashed, _called(name, "datasets", "the training rows"))
        both = np.isin(hashed.columns, before.columns) & np.isin(hashed.prompts, before.prompts)
        if both.any():
            yield f"data.datasets.{name}: {_counted(both, hashed.rows)} in a dataset before it, with the same prompt"
        before = before.followed_by(hashed)
    for name, store in held_out.items():
        hashed = _Hashed.of(store)
        found = np.isin(hashed.columns, before.columns) | np.isin(hashed.prompts, before.prompts)
        if found.any():
            where = _called(name, "eval_datasets", "the held-out rows")
            example = _place_of(hashed, int(np.argmax(found)), trained)
            yield f"{where}: {_counted(found, hashed.rows)} among the training rows, too; {example}"


@dataclass(frozen=True)
class _Hashed:
    """Hashes of the columns and of the prompts' token ids, and the rows' numbers in their dataset, from 1 [rows]."""

    columns: Hashes
    prompts: Hashes
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, store: RowStore) -> "_Hashed":
        columns, prompts, rows = np.empty((3, len(store)), np.int64)
        done = 0
        for texts, token_ids, numbers in store.contents():
            end = done + len(texts)
            # Python's hash is another one in every process, and 64 bits of SipHash in this one.
            columns[done:end] = [*map(hash, texts)]
            # Rows of episodes may have no prompt: then their columns say what is asked.
            prompts[done:end] = [hash(ids or text) for ids, text in zip(token_ids, texts, strict=True)]
            rows[done:end] = numbers + 1
            done = end
        return cls(columns, prompts, rows)

    def followed_by(self, other: "_Hashed") -> "_Hashed":
        pairs = ((self.columns, other.columns), (self.prompts, other.prompts), (self.rows, other.rows))
        return _Hashed(*map(np.concatenate, pairs))


def _within(hashed: _Hashed, where: str) -> Iterator[str]:
    equal = _has_earlier(hashed.columns)
    same_prompt = _has_earlier(hashed.prompts) & ~equal
    if equal.any():
        yield f"{where}: {_counted(equal, hashed.rows)} equal to an earlier row"
    if same_prompt.any():
        counted = _counted(same_prompt, hashed.rows, "has", "have")
        yield f"{where}: {counted} the prompt of an earlier row, with other columns"


def _has_earlier(hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Whether an equal hash stands before each [rows]."""
    found = np.ones(len(hashes), np.bool_)
    found[np.unique(hashes, return_index=True)[1]] = False
    return found


def _place_of(hashed: _Hashed, row: int, trained: Mapping[str, _Hashed]) -> str:
    for name, other in trained.items():
        same = (other.columns == hashed.columns[row]) | (other.prompts == hashed.prompts[row])
        if same.any():
            where = f"of data.datasets.{name}" if name else "there"
            return f"row {hashed.rows[row]} is row {other.rows[np.argmax(same)]} {where}"
    raise ValueError(f"row {hashed.rows[row]} is not among the training rows")


def _called(name: str, setting: str, otherwise: str) -> str:
    return f"data.{setting}.{name}" if name else otherwise


def _counted(found: npt.NDArray[np.bool_], rows: npt.NDArray[np.int64], one: str = "is", several: str = "are") -> str:
    """`3 of 100 rows (2, 7, 9) are`."""
    numbers = rows[found]
    shown = ", ".join(map(str, numbers[:_MOST_LISTED])) + (", …" if len(numbers) > _MOST_LISTED else "")
    return f"{len(numbers)} of {len(found)} rows ({shown}) {one if len(numbers) == 1 else several}"
