"""The off-policy sequence mask: what the policy would no longer say is not pushed down further.

An episode of negative advantage is left out of the loss when the mean over its tokens of log μ − log π is above
`off_policy_mask_threshold` (DeepSeek-V3.2, arXiv 2512.02556; TRL's setting of that name). μ is the server's
logprob; where it gave none, π_old stands for it. Episodes that are left out count in every normaliser.
"""

import torch

from ..config.algorithm import AlgorithmConfig
from .reduction import Tally
from .sequences import MicroBatch
from .surrogates.ratios import mean_by_episode


def off_policy_mask(
    logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally
) -> torch.Tensor | None:
    """1 for the tokens that stay, 0 for those of an episode that is left out [N]; None when it is switched off."""
    if algorithm.off_policy_mask_threshold is None:
        return None
    if batch.old_logprobs_N is None:
        raise ValueError("old_logprobs_N is not filled in")
    sampler_N = torch.where(batch.rollout_logprobs_N.isnan(), batch.old_logprobs_N, batch.rollout_logprobs_N)
    drift_N = mean_by_episode(sampler_N - logprobs_N.detach(), batch)[batch.episode_N]
    kept_N = ((batch.advantage_N >= 0) | (drift_N <= algorithm.off_policy_mask_threshold)).to(logprobs_N.dtype)
    tally.mean("sampling/off_policy_masked", mean_by_episode(1.0 - kept_N, batch))
    return kept_N
