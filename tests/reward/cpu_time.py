"""How long a text keeps the processor busy: the bound is for what takes minutes when it is wrong."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

processor_time = pytest.mark.xdist_group("processor-time")
"""Of tests with such a bound: one after the other, so that none slows another down."""


@contextmanager
def at_most_cpu_s(limit_s: float) -> Iterator[None]:
    """The block takes at most so much CPU time of this thread.

    Without the garbage collector: a full collection goes through everything that all tests have loaded, for a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        started_s = time.thread_time()
        yield
        took_s = time.thread_time() - started_s
    finally:
        if was_on:
            gc.enable()
    assert took_s < limit_s
