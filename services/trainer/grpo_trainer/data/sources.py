"""Which rows a dataset's name stands for: a file, a folder, or a dataset of the Hugging Face Hub.

Every column keeps its name, and its values are plain JSON (see values.py and formats.py).
"""

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError, storage_error_class
from .formats import READERS, read_file
from .splits import data_files, files_of_split
from .values import Row, json_row

log = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """A dataset that was found, and not yet read.

    `identity` is JSON: equal identities mean equal rows. None where nothing is known that would change with them.
    """

    name: str
    limit: int | None
    identity: Any
    read: Callable[[], Iterator[Row]]
    folder: str = "."
    """That its relative paths are of: the folder of a file, or the working directory."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the dataset's order, the first `limit` of them. Raises UsageError.

        All rows are read, whatever `limit` is: a file with a mistake behind it is refused, too.
        """
        number = -1
        for number, row in enumerate(self.read()):
            if self.limit is None or number < self.limit:
                yield row
        if self.limit is not None and 0 <= number < self.limit - 1:
            log.warning("dataset %s#%d: it has %d rows, and all of them are taken", self.name, self.limit, number + 1)
        if number < 0:
            raise UsageError(f"dataset {self.name} has no rows", hint="name a dataset with at least one row")


def read_rows(dataset: str, split: str) -> list[Row]:
    """All rows of `dataset` in memory; see `find_source`."""
    return list(find_source(dataset, split).rows())


def find_source(dataset: str, split: str) -> Source:
    """Find `dataset`: a file, a folder or a Hub name, with `#N` behind it the first N of its rows.

    `split` chooses among the splits of a Hub dataset (`org/name`, or `org/name:subset`), and among the files of a
    folder whose files are named after splits. Raises UsageError, and UnavailableError when the Hub does not answer.
    """
    name, limit = _split_limit(dataset)
    path = Path(name).expanduser()
    if path.is_dir():
        identity, read = _in_folder(path, split)
    elif path.exists():
        identity, read = _stamps(path, [path]), lambda: read_file(path)
    elif _looks_like_a_path(name):
        raise UsageError(f"dataset {name} does not exist", hint=_nearest_file(path))
    else:
        identity, read = _on_hub(name, split)
    here = path if path.is_dir() else path.parent if path.exists() else Path()
    return Source(name, limit, identity, read, str(here))


def _split_limit(dataset: str) -> tuple[str, int | None]:
    name, mark, number = dataset.rpartition("#")
    if not mark or Path(dataset).exists():
        return dataset, None
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"dataset {dataset}: `#{number}` is no number of rows", hint=f"write {name}#500")
    return name, int(number)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or Path(name).suffix.lower() in READERS or _HUB_NAME.fullmatch(name) is None


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    return f"{path.parent} holds {', '.join(names[:8]) or 'nothing'}"


def _stamps(root: Path, files: Sequence[Path]) -> Any:
    """The identity of files: where they are, their sizes, and when contents and entry last changed.

    A file that was copied with its times differs in the latter.
    """
    try:
        stats = [(str(path.resolve()), path.stat()) for path in files]
    except OSError as error:
        raise storage_error_class(error)(f"dataset {root} cannot be read: {error.strerror or error}") from error
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]


# Folders and the Hub


def _in_folder(folder: Path, split: str) -> tuple[Any, Callable[[], Iterator[Row]]]:
    """The files of `split`; see splits.py."""
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        saved = _load_saved(folder, split)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [split, _stamps(folder, files)], lambda: _plain_rows(saved, str(folder))
    files = data_files(folder, READERS)
    if not files:
        raise UsageError(f"dataset {folder} holds no file of a known format", hint=f"known are {', '.join(READERS)}")
    files = files_of_split(folder, files, split)
    return _stamps(folder, files), lambda: (row for path in files for row in read_file(path))


def _load_saved(folder: Path, split: str) -> Any:
    """A folder that `datasets` wrote with `save_to_disk`."""
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise UsageError(f"dataset {folder} cannot be loaded: {_first_line(error)}") from error
    return _one_split(saved, str(folder), split)


def _on_hub(name: str, split: str) -> tuple[Any, Callable[[], Iterator[Row]]]:
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
    rows = _one_split(loaded, name, split)
    # Made of the revision, among others; the name alone would stay the same when somebody uploads other rows.
    fingerprint = getattr(rows, "_fingerprint", None)
    return [name, split, fingerprint] if fingerprint else None, lambda: _plain_rows(rows, name)


def _one_split(loaded: Any, name: str, split: str) -> Any:
    if not isinstance(loaded, Mapping):
        return loaded
    if split not in loaded:
        raise UsageError(f"dataset {name} has no split {split}", hint=f"it has {', '.join(map(str, loaded))}")
    return loaded[split]


def _plain_rows(dataset: Any, name: str) -> Iterator[Row]:
    for number, row in enumerate(_with_encoded_images(dataset.with_format(None)), start=1):
        yield json_row(row, f"dataset {name}, row {number}")


def _with_encoded_images(dataset: Any) -> Any:
    """The same rows with the files of their images instead of decoded pictures."""
    import datasets

    for name, feature in dataset.features.items():
        inner = getattr(feature, "feature", None)
        if isinstance(feature, datasets.Image):
            dataset = dataset.cast_column(name, datasets.Image(decode=False))
        elif isinstance(inner, datasets.Image):
            dataset = dataset.cast_column(name, datasets.List(datasets.Image(decode=False)))
    return dataset


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
