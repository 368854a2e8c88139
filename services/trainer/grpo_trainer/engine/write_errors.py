"""Write errors of one rank, kept until all ranks have passed DeepSpeed's barrier."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .state import STATE_TAG

Write = Callable[[Any, Path], None]
"""Writes what `torch.save` is given into a file, at once or later."""


def save_deepspeed_state(engine: Any, folder: Path, write: Write, *, frozen: bool, beat: Callable[[], None]) -> None:
    """Write the files of all ranks of a DeepSpeed `engine` into `folder`, with the `frozen` parameters or without.

    `beat` is called after each file. Raises this rank's write error once all ranks have written.
    """
    files = engine.checkpoint_engine
    files.save = lambda state_dict, path: write(state_dict, Path(path))  # until `deferring_write_errors` ends
    methods = (files, "makedirs"), (files, "save"), (engine, "_copy_recovery_script")
    with deferring_write_errors(*methods, afterwards=beat):
        engine.save_checkpoint(str(folder), tag=STATE_TAG, save_latest=False, exclude_frozen_parameters=not frozen)


@contextlib.contextmanager
def deferring_write_errors(*methods: tuple[Any, str], afterwards: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Defer write errors until after DeepSpeed's barrier; raising on one rank would hang the others until the timeout.

    `afterwards` is called after each call of the `methods`.
    """
    failures: list[Exception] = []

    def deferring(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return method(*arguments, **named)
            except (OSError, RuntimeError) as error:
                failures.append(error)
            finally:
                afterwards()

        return call

    for owner, name in methods:
        setattr(owner, name, deferring(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name in methods:
            delattr(owner, name)
    if failures:
        raise failures[0]
