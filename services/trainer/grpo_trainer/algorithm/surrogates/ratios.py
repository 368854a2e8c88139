"""The importance ratio of a token, by `importance_sampling_level`.

    token            ρ_n = π(n) / π_old(n)                          PPO, GRPO
    sequence         s_e = exp( mean over the episode of log ρ )    GSPO (arXiv 2507.18071)
    sequence_token   sg(s_e) · π(n) / sg(π(n))                      GSPO-token; sg stops the gradient

With one advantage for an episode the last two have the same loss and gradient; with one for each turn or token only
`sequence_token` lets each act on its own tokens. A sequence is an episode, with all its segments.
"""

import torch

from ...config.algorithm import AlgorithmConfig
from ..sequences import MicroBatch


def importance_ratio(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig) -> torch.Tensor:
    """The ratio of every token [N], with its gradient. Raises ValueError when `old_logprobs_N` is not filled in."""
    if batch.old_logprobs_N is None:
        raise ValueError("old_logprobs_N is not filled in")
    log_ratio_N = logprobs_N - batch.old_logprobs_N
    if algorithm.importance_sampling_level == "token":
        return torch.exp(log_ratio_N)
    ratio_N = torch.exp(mean_by_episode(log_ratio_N, batch))[batch.episode_N]
    if algorithm.importance_sampling_level == "sequence":
        return ratio_N
    return ratio_N.detach() * torch.exp(logprobs_N - logprobs_N.detach())


def sum_by_episode(values_N: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """One sum for each episode [E]."""
    return values_N.new_zeros(batch.num_episodes).index_add(0, batch.episode_N, values_N)


def mean_by_episode(values_N: torch.Tensor, batch: MicroBatch, kept_N: torch.Tensor | None = None) -> torch.Tensor:
    """One mean for each episode [E], of all its values or of those that are kept; 0 where none is."""
    kept_N = torch.ones_like(values_N) if kept_N is None else kept_N.to(values_N.dtype)
    return sum_by_episode(values_N * kept_N, batch) / sum_by_episode(kept_N, batch).clamp(min=1.0)
