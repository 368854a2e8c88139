"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Until it is true; `what` is told when that takes longer than `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
