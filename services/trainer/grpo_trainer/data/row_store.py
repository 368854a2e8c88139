"""Rows on disk, ready to sample from: an Arrow file, read through a memory map one row at a time.

A row is its columns as JSON text, its prompt as JSON text, its token ids, its number in the dataset, of which rows may
have been left out, where its images are, and as JSON text which column had them. The columns do not use Arrow's own
types, which are one for all rows of a column and know no integer beyond 64 bits: a row must come back as it was read.

The last record batch has no rows and carries the summary.
"""

import hashlib
import itertools
import json
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import storage_error_class
from .batches import RowBatch
from .images import RowImages
from .prompt_row import PromptRow, PromptRows

_SCHEMA = pa.schema(
    [
        ("columns", pa.string()),
        ("prompt", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("number", pa.int64()),
        ("images", pa.list_(pa.string())),
        ("image_column", pa.string()),
    ]
)
_SUMMARY = b"summary"


@dataclass(frozen=True)
class Summary:
    """Facts about all rows together. Lengths are those of the prompts, in tokens; without rows both are 0.

    `fingerprint` stands for everything that decides the rows (see rows.py); None where that is not known.
    `rows_digest` is a SHA-256 of the dataset's rows as they were read, in their order, and of which are left out;
    `prompts_digest` is one of the token ids of their prompts: another path or time of a file changes neither. Both are
    empty without rows.
    """

    fingerprint: str | None
    num_rows: int = 0
    rows_per_batch: int = 1
    shortest_prompt: int = 0
    longest_prompt: int = 0
    largest_token: int = -1
    """Of all prompts."""
    rows_digest: str = ""
    num_dropped: int = 0
    """Rows whose prompts are too long."""
    prompts_digest: str = ""
    most_images: int = 0
    """Of a row."""
    first_with_images: int | None = None
    """Place of the first row whose prompt has images."""

    def with_batch(self, batch: RowBatch) -> "Summary":
        lengths = [len(ids) for ids in batch.token_ids]
        return replace(
            self,
            num_rows=self.num_rows + len(lengths),
            rows_per_batch=self.rows_per_batch if self.num_rows else len(lengths),
            shortest_prompt=min(lengths if not self.num_rows else [*lengths, self.shortest_prompt]),
            longest_prompt=max(*lengths, self.longest_prompt),
            first_with_images=self._first_with_images(batch),
            most_images=max(self.most_images, *(len(one.sources) for one in batch.images)),
            largest_token=max(max(ids, default=-1) for ids in [*batch.token_ids, [self.largest_token]]),
        )

    def _first_with_images(self, batch: RowBatch) -> int | None:
        if self.first_with_images is not None:
            return self.first_with_images
        shown = (bool(one.sources and ids) for one, ids in zip(batch.images, batch.token_ids, strict=True))
        return next((self.num_rows + place for place, is_shown in enumerate(shown) if is_shown), None)


class RowStore(PromptRows):
    """The rows of a file that `write_rows` wrote. The file may be removed while they are in use."""

    def __init__(self, path: Path):
        """Raises OSError, or ValueError for a file that `write_rows` did not write, or another version of it."""
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        # Arrow does not promise that two threads may read one file, and the event loop and the main thread both do.
        self._lock = threading.Lock()
        last = self._reader.num_record_batches - 1
        metadata = self._reader.get_batch_with_custom_metadata(last)[1] if last >= 0 else None
        if metadata is None or _SUMMARY not in metadata:
            raise ValueError(f"{path} has no summary")
        self.summary = Summary(**json.loads(metadata[_SUMMARY]))

    def __len__(self) -> int:
        return self.summary.num_rows

    def contents(self) -> Iterator[tuple[list[str], list[bytes], NDArray[np.int64]]]:
        """Yield the columns of each batch as JSON texts, its token ids as bytes, and its rows' numbers. A row's images
        stand behind both."""
        for number in range(self._reader.num_record_batches - 1):
            with self._lock:
                batch = self._reader.get_batch(number)
            ids, ends = batch.column(2).values.to_numpy(), batch.column(2).offsets.to_numpy()
            images = ["".join(sources) for sources in batch.column(4).to_pylist()]
            bytes_of_rows = [
                ids[begin:end].tobytes() + of_row.encode()
                for (begin, end), of_row in zip(itertools.pairwise(ends), images, strict=True)
            ]
            columns = [text + of_row for text, of_row in zip(batch.column(0).to_pylist(), images, strict=True)]
            yield columns, bytes_of_rows, batch.column(3).to_numpy()

    def _row(self, index: int) -> PromptRow:
        batch_number, place = divmod(index, self.summary.rows_per_batch)
        with self._lock:
            batch = self._reader.get_batch(batch_number)
        columns, prompt, token_ids, number, images, image_column = (
            batch.column(name)[place].as_py() for name in _SCHEMA.names
        )
        return PromptRow(
            index=number,
            token_ids=token_ids,
            prompt=json.loads(prompt),
            columns=json.loads(columns),
            images=tuple(images),
            image_column=None if image_column is None else tuple(json.loads(image_column)),
        )


def open_rows(path: Path, fingerprint: str) -> RowStore | None:
    """The rows in `path` if they are those of `fingerprint`; None if they are others, or the file is missing or broken.

    Then it is written anew, which reports what is wrong with the disk.
    """
    try:
        store = RowStore(path)
    except (OSError, ValueError):
        return None
    return store if store.summary.fingerprint == fingerprint else None


def write_rows(
    path: Path,
    batches: Iterable[RowBatch],
    fingerprint: str | None,
    *,
    rows_digest: Callable[[], str] = str,
    num_dropped: Callable[[], int] = int,
) -> RowStore:
    """Write `path` through a neighbour and a rename: a reader, or a kill, never sees half of it.

    All batches but the last have equally many rows. `rows_digest` and `num_dropped` are asked for after the last.
    Raises what `batches` raises, and TrainerError when the disk takes no more.
    """
    # The same name at every start, so what a kill left is overwritten: a trainer has its run folder alone.
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            with temporary.open("wb") as file:
                _write(file, batches, fingerprint, rows_digest, num_dropped)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return RowStore(path)
    except OSError as error:
        raise storage_error_class(error)(f"the rows cannot be kept in {path}: {error.strerror or error}") from error


def _write(
    file: BinaryIO,
    batches: Iterable[RowBatch],
    fingerprint: str | None,
    rows_digest: Callable[[], str],
    num_dropped: Callable[[], int],
) -> None:
    summary, prompts, numbers = Summary(fingerprint), hashlib.sha256(), hashlib.sha256()
    with pa.ipc.new_file(file, _SCHEMA) as writer:
        for batch in batches:
            if summary.num_rows % summary.rows_per_batch:
                raise ValueError("a batch follows one with fewer rows than the first")
            writer.write_batch(
                _record_batch(
                    map(json.dumps, batch.columns),
                    map(json.dumps, batch.prompts),
                    batch.token_ids,
                    batch.numbers,
                    batch.images,
                )
            )
            for ids in batch.token_ids:
                prompts.update(array("i", [len(ids), *ids]).tobytes())
            numbers.update(array("q", batch.numbers).tobytes())
            summary = summary.with_batch(batch)
        if summary.num_rows:
            digest, dropped = rows_digest(), num_dropped()
            if dropped:
                digest = hashlib.sha256(digest.encode() + numbers.digest()).hexdigest()
            summary = replace(summary, rows_digest=digest, num_dropped=dropped, prompts_digest=prompts.hexdigest())
        writer.write_batch(_record_batch([], [], [], [], []), custom_metadata={_SUMMARY: json.dumps(asdict(summary))})


def _record_batch(
    columns: Iterable[str],
    prompts: Iterable[str],
    token_ids: list[list[int]],
    numbers: list[int],
    images: list[RowImages],
) -> pa.RecordBatch:
    sources = [one.sources for one in images]
    image_columns = [None if one.column is None else json.dumps(one.column) for one in images]
    of_fields = (list(columns), list(prompts), token_ids, numbers, sources, image_columns)
    return pa.record_batch(
        [pa.array(values, field.type) for field, values in zip(_SCHEMA, of_fields, strict=True)], schema=_SCHEMA
    )
