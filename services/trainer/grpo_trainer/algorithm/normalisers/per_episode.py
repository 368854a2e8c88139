"""Normalisers in which each episode of an update counts.

TRL has the same formulas; it takes N per micro-batch and rank and averages, which is the same only when all
micro-batches are equally large.
"""

from .counts import Counts


def grpo(counts: Counts) -> list[float]:
    """1 / (T_e · N): each episode counts the same, however long it is (arXiv 2402.03300)."""
    return [1.0 / (tokens * n) for tokens, n in zip(counts.tokens, counts.episodes_of_update(), strict=True)]


def dr_grpo(counts: Counts) -> list[float]:
    """1 / (N · limit): no length bias (arXiv 2503.20783). Another limit is another scale."""
    return [1.0 / (n * counts.limit) for n in counts.episodes_of_update()]


def luspo(counts: Counts) -> list[float]:
    """1 / N: each token of the update counts the same, whatever the lengths are (LUSPO, arXiv 2602.05261).

    With ratios of whole episodes a long one then counts as often as it has tokens.
    """
    return [1.0 / n for n in counts.episodes_of_update()]
