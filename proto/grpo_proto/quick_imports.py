"""Collect garbage seldom while large libraries are imported.

Of the half a million objects that torch and vLLM make meanwhile nearly all stay, and to look through them again and
again takes a quarter of the time. Afterwards it would be no gain: young objects that are freed soon stay in the cache.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 50_000
"""New objects between two looks at them; Python's own number is 700."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect seldom inside, and as before afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
