"""KL in the reward: what an episode pays for leaving the reference model, before its advantage is estimated.

    total_i  −  beta · Σ_t (log π(t) − log π_ref(t))        over the trained tokens t of the episode

k1, the plain log ratio: its gradient by way of the reward is that of the reverse KL, which k3 has only as a term of the
loss. TRL's RLOOTrainer and ms-swift's `kl_in_reward`. Both logprobs are the trainer's own at the run's temperature,
under the weights that the batch starts from. Left out on purpose: a KL of each token as its own reward (PPO), because
an estimator gives an episode one advantage.
"""

from collections.abc import Sequence

import torch

from .decisions import facts_of
from .sequences import Episode, Group, MicroBatch, TrainingSequence


def sequences_to_compare(groups: Sequence[Group]) -> tuple[list[Episode], list[TrainingSequence]]:
    """The episodes with a total, and their sequences with trained tokens, which carry the number of the episode."""
    episodes = [episode for group in groups for episode in group.episodes if episode.total is not None]
    return episodes, [sequence for number, episode in enumerate(episodes) for sequence in facts_of(episode, number)]


def log_ratio_sums(batch: MicroBatch, logprobs_N: torch.Tensor, ref_logprobs_N: torch.Tensor) -> list[float]:
    """Σ log π − log π_ref of each sequence of a micro-batch, in float64; nothing for the empty micro-batch."""
    difference_N = logprobs_N.double() - ref_logprobs_N.double()
    trained_Q = torch.tensor(batch.trained_Q, dtype=torch.int64, device=difference_N.device)
    sequence_N = torch.repeat_interleave(trained_Q)
    found: list[float] = difference_N.new_zeros(len(trained_Q)).index_add(0, sequence_N, difference_N).tolist()
    return found


def penalize(
    episodes: Sequence[Episode], compared: Sequence[TrainingSequence], sums: Sequence[float], *, beta: float
) -> dict[str, float]:
    """Give the episodes their penalty from the sums of their sequences. Returns `kl`, the mean of k1 over tokens."""
    for sequence, log_ratio in zip(compared, sums, strict=True):
        episodes[sequence.episode].kl_penalty += beta * log_ratio
    num_tokens = sum(sequence.num_trained for sequence in compared)
    return {"kl": sum(sums) / num_tokens} if num_tokens else {}
