"""VESPO: REINFORCE weighed by a smooth function of the episode's whole importance weight.

    l = −sg(φ(w)) · A · log π,    φ(w) = e^λ · w^k · e^(−λ·w),    w = Π over the episode of ρ · c

φ(1) = 1, and φ falls to 0 on both sides; k and λ are the parameters `vespo_k_pos` and `vespo_lambda_pos` where A ≥ 0,
else those with `_neg`. c is the mismatch correction, which is inside of w and therefore not applied again. arXiv
2602.10693; bounds of the logarithms (±20 for ρ, 1e-8 for w and c) as in TRL.
"""

import math

import torch

from ...config.algorithm import AlgorithmConfig
from ...config.section import Positive
from ..correction import rollout_correction
from ..reduction import Tally
from ..sequences import MicroBatch
from .ratios import mean_by_episode, sum_by_episode
from .reads import reads

SMALLEST, LARGEST = math.log(1e-8), 20.0


@reads(zero_without_advantage=True, corrects_mismatch=True, token_correction=True)
def vespo(
    logprobs_N: torch.Tensor,
    batch: MicroBatch,
    algorithm: AlgorithmConfig,
    tally: Tally,
    *,
    vespo_k_pos: Positive = 2.0,
    vespo_lambda_pos: Positive = 3.0,
    vespo_k_neg: Positive = 3.0,
    vespo_lambda_neg: Positive = 2.0,
) -> torch.Tensor:
    """The loss of every token [N]."""
    log_weight_N = (logprobs_N.detach() - batch.old_logprobs_N).double().clamp(-LARGEST, LARGEST)
    correction_N = rollout_correction(batch, algorithm, tally)
    if correction_N is not None:
        log_weight_N = log_weight_N + correction_N.log().clamp(SMALLEST, LARGEST)
    log_weight_N = sum_by_episode(log_weight_N, batch).clamp(SMALLEST, LARGEST)[batch.episode_N]
    k_N = torch.where(batch.advantage_N >= 0, vespo_k_pos, vespo_k_neg)
    lambda_N = torch.where(batch.advantage_N >= 0, vespo_lambda_pos, vespo_lambda_neg)
    phi_N = torch.exp(lambda_N + k_N * log_weight_N - lambda_N * log_weight_N.exp()).to(logprobs_N.dtype)
    tally.mean("vespo/phi_seq_mean", mean_by_episode(phi_N, batch))
    return -phi_N * batch.advantage_N * logprobs_N
