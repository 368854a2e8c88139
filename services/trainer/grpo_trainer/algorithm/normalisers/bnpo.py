"""BNPO's normaliser: each token of an update counts the same, whatever the other updates of the batch hold."""

from .counts import Counts


def bnpo(counts: Counts) -> list[float]:
    """1 / T of the update: each of its tokens counts the same."""
    return [1.0 / total for total in counts.tokens_of_update()]
