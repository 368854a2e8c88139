"""How much of a completion repeats itself: `completions/repeated_ratio`, the metric of the guard `repetition`."""

from collections.abc import Iterable, Sequence

import numpy as np

from ..algorithm.scores import mean

NGRAM = 4
"""Tokens. Prose and mathematics repeat few sequences of four; a loop repeats all of them."""
SHORTEST = 4 * NGRAM
"""Tokens of the shortest completion that is counted: an answer of a few words has nothing to repeat."""
_FACTORS = np.power(np.uint64(0x9E3779B97F4A7C15), np.arange(NGRAM, dtype=np.uint64))


def repeated_ratio(completions: Iterable[Sequence[int]]) -> float | None:
    """Mean over completions of 1 − distinct / all n-grams of their tokens; None when all are too short."""
    return mean(_repeated(np.asarray(ids, np.uint64)) for ids in completions if len(ids) >= SHORTEST)


def _repeated(ids: np.ndarray) -> float:
    windows = np.lib.stride_tricks.sliding_window_view(ids, NGRAM)
    # One number for an n-gram, modulo 2^64: two that differ share it too seldom to matter.
    hashes = (windows * _FACTORS).sum(axis=1)
    return 1.0 - len(np.unique(hashes)) / len(hashes)
