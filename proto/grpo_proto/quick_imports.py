"""Collect garbage seldom while large libraries are imported.

Of the hundred thousands of objects that torch and vLLM make meanwhile nearly all stay, and looking through them again
and again is a quarter of the import's own time. Afterwards the collector has its old number: what it looks through is
then still in the processor's cache.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000
"""New objects between two looks at them; Python's own number is 700, from 3.13 on 2,000."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect seldom inside, and as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
