"""avg@k and pass@k of prompts that were sampled several times.

avg@k is the share of correct completions. pass@k is the chance that at least one of k completions is correct, for a
prompt with c correct ones among n, by the estimator of Chen et al., "Evaluating Large Language Models Trained on Code",
2021 (arXiv 2107.03374):

    pass@k = 1 - C(n - c, k) / C(n, k)

It has no bias for any n >= k, where 1 - (1 - c/n)^k is too low, and less variance than a look at only k completions.

Completions that the accuracy reward could not score count neither in n nor in c. A prompt with fewer than k scored ones
enters no pass@k: there is no estimate of it.
"""

from collections.abc import Iterable, Sequence
from math import comb

from .scores import accuracy, mean
from .sequences import Group


def pass_at_k(num_scored: int, num_correct: int, k: int) -> float | None:
    """The chance that one of `k` completions of a prompt is correct; None with fewer than `k` scored completions."""
    if num_scored < k:
        return None
    return 1.0 - comb(num_scored - num_correct, k) / comb(num_scored, k)


def at_k_metrics(groups: Sequence[Group], *, num_generations: int, pass_at: Iterable[int]) -> dict[str, float]:
    """`avg@<num_generations>` and `pass@<k>` for each k, without those that no prompt has an estimate of."""
    metrics = {f"avg@{num_generations}": accuracy(groups)}
    correct = [[found for episode in group.episodes if (found := episode.correct) is not None] for group in groups]
    for k in pass_at:
        estimates = [pass_at_k(len(found), sum(found), k) for found in correct]
        metrics[f"pass@{k}"] = mean(estimate for estimate in estimates if estimate is not None)
    return {name: value for name, value in metrics.items() if value is not None}
