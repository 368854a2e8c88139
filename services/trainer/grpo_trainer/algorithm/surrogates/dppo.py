"""DPPO: a trust region by how far the policy has moved, in place of the clip of a ratio.

    l = −M · sg( min(ρ, 20) ) · A · log π,    ρ = π / μ

M is 0, and the token without a gradient, where A > 0, π > μ and D > epsilon_high, and where A ≤ 0, π < μ and
D > epsilon. D is a distance of two Bernoulli distributions, "this token or another", under the sampler's μ and π:

    dppo_tv   D = |π − μ|
    dppo_kl   D = μ · log(μ / π) + (1 − μ) · log((1 − μ) / (1 − π))

arXiv 2602.04879; thresholds 0.15 and 0.05 are the paper's, the bound 20 is that of its code. ρ is to μ,
so that the mismatch correction is inside. Left out on purpose: the distances over the K most probable tokens.
"""

from collections.abc import Callable

import torch

from ...config.algorithm import AlgorithmConfig
from ..reduction import Tally
from ..sequences import MicroBatch
from .clip_metrics import tally_clipping
from .reads import reads

LARGEST_RATIO = 20.0
NEARLY_ONE = 1.0 - 1e-6
"""Largest probability in the logarithm of 1 − π."""


@reads(zero_without_advantage=True, old=False, behaviour=True, corrects_mismatch=True, by_token=True)
def dppo_tv(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N], with the total variation as distance."""
    return _masked(logprobs_N, batch, algorithm, tally, lambda policy_N, sampler_N: (policy_N - sampler_N).abs())


@reads(zero_without_advantage=True, old=False, behaviour=True, corrects_mismatch=True, by_token=True)
def dppo_kl(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally) -> torch.Tensor:
    """The loss of every token [N], with the Kullback-Leibler divergence as distance."""
    return _masked(logprobs_N, batch, algorithm, tally, _divergence)


def _divergence(policy_N: torch.Tensor, sampler_N: torch.Tensor) -> torch.Tensor:
    other_policy_N, other_sampler_N = 1.0 - policy_N.clamp(max=NEARLY_ONE), 1.0 - sampler_N.clamp(max=NEARLY_ONE)
    this_N = torch.special.xlogy(sampler_N, sampler_N / policy_N)
    return this_N + other_sampler_N * (other_sampler_N / other_policy_N).log()


def _masked(
    logprobs_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    tally: Tally,
    distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    now_N = logprobs_N.detach()
    distance_N = distance(now_N.exp(), batch.rollout_logprobs_N.exp())
    up_N, gains_N = now_N > batch.rollout_logprobs_N, batch.advantage_N > 0
    high_N = gains_N & up_N & (distance_N > algorithm.upper_epsilon)
    low_N = ~gains_N & (now_N < batch.rollout_logprobs_N) & (distance_N > algorithm.epsilon)
    tally_clipping(low_N & (batch.advantage_N < 0), high_N, batch, tally, by_episode=False)
    ratio_N = torch.exp(now_N - batch.rollout_logprobs_N).clamp(max=LARGEST_RATIO)
    return -(~(high_N | low_N)).to(ratio_N.dtype) * ratio_N * batch.advantage_N * logprobs_N
