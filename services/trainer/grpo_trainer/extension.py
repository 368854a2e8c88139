"""What a run file names: an entry of one of our tables, or a user's own as `FILE.py:NAME`."""

import difflib
import hashlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TypeVar

from grpo_proto.swift_stand_in import hint_for

from .errors import UsageError, storage_error_class

log = logging.getLogger(__name__)

EntryT = TypeVar("EntryT")

SLOW_IMPORT_S = 10.0
"""How long a user's file may take to be imported until the log names it."""


def named(name: str, table: Mapping[str, EntryT], *, setting: str) -> EntryT:
    """The entry `name` of `table`, or NAME of the file when it is `FILE.py:NAME`.

    Raises UsageError that lists the known names, or says what is wrong with the file. There is no silent default.
    """
    if name in table:
        return table[name]
    if (file := file_of(name)) is not None:
        found: EntryT = _of_file(file, name.rpartition(":")[2], setting)
        return found
    close = difflib.get_close_matches(name, table, n=1)
    known = f"known are {', '.join(sorted(table))}; " if table else ""
    raise UsageError(
        f"{setting} {name} is unknown{f'; did you mean {close[0]}?' if close else ''}",
        hint=f"{known}your own is FILE.py:NAME",
    )


def file_of(name: str) -> Path | None:
    """The file of a user's own, `FILE.py:NAME`; None for an entry of a table."""
    file = name.rpartition(":")[0]
    return Path(file).expanduser().resolve() if file.endswith(".py") else None


def file_hash(name: str) -> str | None:
    """SHA-256 of the file of a user's own; None for an entry of a table. Raises TrainerError when it cannot be read."""
    file = file_of(name)
    if file is None:
        return None
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise storage_error_class(error)(f"{name} cannot be read: {error.strerror or error}") from error


def failure_of(name: str, error: BaseException) -> str:
    """What the user's own `name` raised, and in which line of its file: the innermost one, which may call a library."""
    file = str(file_of(name))
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{name} raised {type(error).__name__}{where}: {error}"


def _of_file(file: Path, function: str, setting: str) -> Any:
    try:
        module = module_of(file)
    except Exception as error:
        if not file.is_file():
            raise UsageError(f"{setting}: there is no file {file}") from error
        why = f"{setting}: {file} cannot be imported: {type(error).__name__}: {error}"
        raise UsageError(why, hint=hint_for(error)) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise UsageError(f"{setting}: {file} has no function {function}")
    return found


@cache
def module_of(file: Path) -> ModuleType:
    """Import the file once: what it keeps between steps stays, and all that is named in it shares that.

    Its neighbours can be imported, and import it by its plain name where no library has that: it stays one module.
    Logs a warning that names it when that takes longer than `SLOW_IMPORT_S`.
    """
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # at the end: a neighbour must not stand in for a library
    name = _plain_name(file)
    if name == file.stem and name in sys.modules:
        return sys.modules[name]  # a neighbour has imported it
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their own module
    text = ("importing %s for %g s; its code runs or waits", file, SLOW_IMPORT_S)
    late = threading.Timer(SLOW_IMPORT_S, log.warning, text)
    late.daemon = True
    late.start()
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    finally:
        late.cancel()
    return module


def _plain_name(file: Path) -> str:
    """Return the name by which other files import this one; one of its own, where that means something else."""
    try:
        spec = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file:
        return file.stem
    unique = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    return f"grpo_trainer_extension_{file.stem}_{unique}"
