"""Which files of a folder are of a split, by the words of their names.

A file's own name decides, then the names of its folders, from the nearest on. Words are runs of letters, in any case:
`gsm8k_train.jsonl`, `Train.jsonl`, `trainSet.csv`, `data/train/0.jsonl` and `train-00000-of-00002.parquet` are of
`train`. What names two splits (`train_eval.jsonl`, `train/test.jsonl`) is not clear, and an error for either of them.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import UsageError

log = logging.getLogger(__name__)

_SPLITS = {
    "train": ("train", "training", "trn", "训练"),
    "validation": ("validation", "valid", "val", "验证"),
    "dev": ("dev", "devel", "development"),
    "test": ("test", "testing", "tst", "测试"),
    "eval": ("eval", "evals", "evaluation"),
    "held_out": ("heldout", "holdout"),
}
"""Split → words that mean it."""
_KINDS = ({"train"}, {"validation", "dev"}, {"test", "eval", "held_out"})
"""A split that no file is of is found under the other names of its kind: `datasets` takes `eval` for `test`, too."""
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words}
_COMPOUND = re.compile(rf"({'|'.join(_SPLIT_OF)})(?:sets?|data|splits?|files?|rows|集)?")
_WORD = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_HELD_OUT = re.compile(r"\b(held|hold) out\b")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b")
_NO_DATA = {"config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"}
"""What `datasets` and the Hub write beside the data."""
_MOST_LISTED = 12


def data_files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """The files below `folder` that have one of the endings, sorted; none that is hidden, or in a hidden folder."""
    known = set(suffixes)
    found = (path for path in folder.rglob("*") if path.suffix.lower() in known and path.name not in _NO_DATA)
    return sorted(
        path
        for path in found
        if not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts) and path.is_file()
    )


def files_of_split(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """Those of `files` that are of `split`; all of them where no name holds a split, which is logged.

    Raises UsageError, which lists the files, where none is of `split`, or a name is not clear.
    """
    named = [_Named.of(path, folder) for path in files]
    wanted = _COMPOUND.fullmatch(" ".join(_words(split)))
    if wanted is None:
        chosen = [file for file in named if file.holds(split)]
    elif not any(file.splits for file in named):
        return _all_of(folder, files, split)
    else:
        chosen = _of_known_split(folder, named, _SPLIT_OF[wanted[1]], asked=split)
    if not chosen:
        raise UsageError(
            f"dataset {folder} has no split {split}; its files are {_listed(named)}",
            hint="give the split that is meant, or name a file as the dataset: it is taken as it is",
        )
    splits = frozenset().union(*(file.splits for file in chosen if wanted))
    if left_out := [file for file in named if file not in chosen and (not file.splits or file.splits & splits)]:
        log.warning("dataset %s, split %s: left out, for their names: %s", folder, split, _listed(left_out))
    log.info("dataset %s, split %s: %s", folder, split, _listed(chosen))
    return [file.path for file in chosen]


@dataclass(frozen=True)
class _Named:
    """A file, and the splits that it is named after: one; several, when it is not clear; or none."""

    path: Path
    name: Path
    """Within the folder."""
    splits: frozenset[str]

    @classmethod
    def of(cls, path: Path, folder: Path) -> Self:
        name = path.relative_to(folder)
        parts = [_splits_in(part) for part in (name.stem, *reversed(name.parent.parts))]
        nearest: frozenset[str] = next((found for found in parts if found), frozenset())
        against = [found for found in parts if found and _kinds_of(found).isdisjoint(_kinds_of(nearest))]
        return cls(path, name, nearest.union(*against))

    def holds(self, split: str) -> bool:
        """Whether all words of `split`, such as `train_prefs` or `algebra`, follow each other in a part of the name."""
        return any(f" {' '.join(_words(split))} " in f" {' '.join(_words(part))} " for part in self.name.parts)

    def split_name(self, split: str) -> str:
        """`train_prefs` of `train_prefs-00000-of-00002.parquet`, as the Hub names files; else one of `splits`."""
        shard = _SHARD.match(self.name.name)
        if shard and _splits_in(shard[1]):
            return shard[1]
        return split if split in self.splits else min(self.splits)

    @property
    def is_clear(self) -> bool:
        return len(_kinds_of(self.splits)) == 1


def _of_known_split(folder: Path, named: Sequence[_Named], split: str, *, asked: str) -> list[_Named]:
    kind = _kind_of(split)
    unclear = [file for file in named if not file.is_clear and kind in _kinds_of(file.splits)]
    if unclear:
        raise UsageError(
            f"dataset {folder}: it is not clear which of its files are of the split {asked}: {_listed(unclear)}",
            hint="rename them, name a file as the dataset, or give all words of their names as the split",
        )
    for splits in ({split}, _KINDS[kind]):
        if chosen := [file for file in named if file.splits & splits and file.is_clear]:
            break
    names = {file.split_name(split) for file in chosen}
    if split in names:
        return [file for file in chosen if file.split_name(split) == split]
    if len(names) > 1:
        raise UsageError(
            f"dataset {folder} has several splits that may be meant by {asked}: {', '.join(sorted(names))}; its files "
            f"are {_listed(chosen)}",
            hint="give the split that is meant, or name a file as the dataset: it is taken as it is",
        )
    return chosen


def _all_of(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """Files of no split, as the library `datasets` takes them; a word about files that differ by more than a number."""
    if len({tuple(_words(str(path.relative_to(folder)))) for path in files}) > 1:
        shown = _listed([_Named.of(path, folder) for path in files])
        log.warning("dataset %s: no file is named after a split, so all are of %s: %s", folder, split, shown)
    return list(files)


def _words(text: str) -> list[str]:
    spaced = " ".join(_WORD.findall(_HUMP.sub(" ", text))).lower()
    return _HELD_OUT.sub(r"\1out", spaced).split()


def _splits_in(part: str) -> frozenset[str]:
    found = (_COMPOUND.fullmatch(word) for word in _words(part))
    return frozenset(_SPLIT_OF[match[1]] for match in found if match)


def _kind_of(split: str) -> int:
    return next(number for number, kind in enumerate(_KINDS) if split in kind)


def _kinds_of(splits: Iterable[str]) -> set[int]:
    return {_kind_of(split) for split in splits}


def _listed(files: Sequence[_Named]) -> str:
    shown = [f"{file.name} ({' or '.join(sorted(file.splits)) or 'no split'})" for file in files[:_MOST_LISTED]]
    more = len(files) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")
