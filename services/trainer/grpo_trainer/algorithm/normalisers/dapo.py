"""DAPO's normaliser: each token of the generation batch counts the same, whichever update it is in."""

from .counts import Counts


def dapo(counts: Counts) -> list[float]:
    """Updates / T of the whole generation batch: each of its tokens counts the same (arXiv 2503.14476)."""
    weight = counts.num_updates / max(sum(counts.tokens), 1)
    return [weight] * len(counts.tokens)
