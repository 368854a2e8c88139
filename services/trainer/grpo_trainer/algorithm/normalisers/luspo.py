"""LUSPO's normaliser: each token of an update counts the same, by the number of episodes."""

from .counts import Counts


def luspo(counts: Counts) -> list[float]:
    """1 / N: each token of the update counts the same, whatever the lengths are (LUSPO, arXiv 2602.05261).

    With ratios of whole episodes a long one then counts as often as it has tokens.
    """
    return [1.0 / n for n in counts.episodes_of_update()]
