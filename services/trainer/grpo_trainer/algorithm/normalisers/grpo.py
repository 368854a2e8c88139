"""GRPO's normaliser: each episode of an update counts the same.

TRL has the same formula; it takes N per micro-batch and rank and averages, which is the same only when all
micro-batches are equally large. So it does for `dr_grpo` and `luspo`.
"""

from .counts import Counts


def grpo(counts: Counts) -> list[float]:
    """1 / (T_e · N): each episode counts the same, however long it is (arXiv 2402.03300)."""
    return [1.0 / (tokens * n) for tokens, n in zip(counts.tokens, counts.episodes_of_update(), strict=True)]
