"""The normaliser in which each token of the generation batch counts."""

from .counts import Counts


def dapo(counts: Counts) -> list[float]:
    """Updates / T of the whole generation batch: each of its tokens counts the same (arXiv 2503.14476)."""
    weight = counts.num_updates / max(sum(counts.tokens), 1)
    return [weight] * len(counts.tokens)
