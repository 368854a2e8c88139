"""Write errors of one rank, kept until all ranks have passed DeepSpeed's barrier."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


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
