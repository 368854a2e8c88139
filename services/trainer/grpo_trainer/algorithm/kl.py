"""The KL term of the loss: how far a token's policy is from the reference, by `kl_estimator`.

    k2       ½ · (log π − log π_ref)²
    k3       π_ref / π − log(π_ref / π) − 1                     (arXiv 2402.03300)
    unbiased k3 · ρ, ρ = π / π_old                              (DeepSeek-V3.2, arXiv 2512.02556)

With fresh samples the gradient of k2 is that of the reverse KL, that of k3 is not; the factor ρ makes it so, also when
the policy has moved on. Left out on purpose: k1 = log π − log π_ref, whose gradient is 0 on average; it belongs into
the reward (`kl_in_reward.py`).
"""

import torch

from ..config.algorithm import AlgorithmConfig
from .sequences import MicroBatch


def kl_term(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig) -> torch.Tensor:
    """The KL of every token [N], before beta. Raises ValueError when the logprobs that it reads are not filled in."""
    if batch.ref_logprobs_N is None:
        raise ValueError("the loss has a KL term, and ref_logprobs_N is not filled in")
    log_ratio_N = batch.ref_logprobs_N - logprobs_N
    if algorithm.kl_estimator == "k2":
        return log_ratio_N.square() / 2.0
    k3_N = torch.exp(log_ratio_N) - log_ratio_N - 1.0
    if algorithm.kl_estimator == "k3":
        return k3_N
    if batch.old_logprobs_N is None:
        raise ValueError("the loss has an unbiased KL term, and old_logprobs_N is not filled in")
    return k3_N * torch.exp(logprobs_N - batch.old_logprobs_N)
