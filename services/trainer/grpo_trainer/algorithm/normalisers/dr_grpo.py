"""Dr. GRPO's normaliser: an episode counts by its tokens, against a limit that is the same for all."""

from .counts import Counts


def dr_grpo(counts: Counts) -> list[float]:
    """1 / (N · limit): no length bias (arXiv 2503.20783). Another limit is another scale."""
    return [1.0 / (n * counts.limit) for n in counts.episodes_of_update()]
