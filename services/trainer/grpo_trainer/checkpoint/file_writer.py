"""Write the files of a checkpoint: at once, or from a copy while training goes on.

A file's contents are what `torch.save` is given. For the background they are copied into host memory, which takes as
much of it as the rank saves; a thread writes and frees the copies file by file.
Waits for: nothing, but `described` with `wait`, for the thread.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .files import Described, describe_files


class FileWriter:
    """Writes what one rank saves of one checkpoint, below the folder `root`."""

    def __init__(self, root: Path, *, in_background: bool):
        self._root = root
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if in_background else None
        self._files: list[tuple[Callable[[], bool], Callable[[], Described]]] = []
        """Of each file: whether it is written, and its description, which raises what its writing raised."""

    def write(self, state: Any, path: Path) -> None:
        """Write `state`, or copy it for the thread. Raises what `torch.save` raises, unless it is for the thread."""
        describe = partial(describe_files, self._root, [path.relative_to(self._root).as_posix()])
        if self._thread is None:
            _save(state, path)
            self._files.append((lambda: True, describe))
        else:
            writing = self._thread.submit(_write, copied_to_host(state), path, describe)
            self._files.append((writing.done, writing.result))

    def described(self, *, wait: bool, beat: Callable[[], None]) -> Described | None:
        """Describe all files, once they are written; None while they are not, which `wait` excludes.

        Nothing can be given to `write` after it. `beat` is called after each file. Raises what `torch.save` raises.
        """
        if self._thread is not None:
            self._thread.shutdown(wait=False)  # it ends after the last file
        found: Described = {}
        for is_written, describe in self._files:
            if not wait and not is_written():
                return None
            found |= describe()
            beat()
        return found


def _write(state: Any, path: Path, describe: Callable[[], Described]) -> Described:
    _save(state, path)
    return describe()


def _save(state: Any, path: Path) -> None:
    """Save into an open file: given a path, torch does not say why it could not write, as on a full disk."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch's own error only says that the file has another length
            raise error.__context__ from None
        raise


def copied_to_host(state: Any) -> Any:
    """Copy the tensors and containers of `state`, so that it stays as it is. Tensors that share memory still do."""
    return _copied(state, {})


def _copied(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(value, torch.Tensor):
        storage = value.detach().untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(storages[storage.data_ptr()], value.storage_offset(), value.shape, value.stride())
    if isinstance(value, dict):
        copied = copy.copy(value)  # with the attributes that a module's state dict has
        for key, of_key in value.items():
            copied[key] = _copied(of_key, storages)
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copied(item, storages) for item in value)
    return value
