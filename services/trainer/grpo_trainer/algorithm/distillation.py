"""On-policy distillation: a teacher's logprobs of the sampled tokens, as advantages of single tokens.

    A_t  +  coef · (log π_teacher(t) − log π_behaviour(t))

−log π_behaviour + log π_teacher of a sampled token is an unbiased estimate of −KL(π ‖ π_teacher) at that position, the
reverse KL, whose gradient is REINFORCE with this term as the reward and no reward for what follows: a discount of 0, as
in "On-Policy Distillation" (Thinking Machines Lab, 2025) and slime's `--opd-kl-coef`. π_behaviour are the server's
logprobs, those of the sampling. Left out on purpose: the KL over the whole vocabulary (GKD, arXiv 2306.13649), which
needs the teacher's logits of every token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from .sequences import Episode, Group, TrainingSequence


def log_ratios_S(episode: Episode) -> NDArray[np.float64]:
    """log π_teacher − log π_behaviour of the S sampled tokens of an episode, in their order.

    Raises RunError when the rollout server has sent no logprobs.
    """
    if episode.num_sampled == 0:
        return np.zeros(0)
    behaviour = [logprob for segment in episode.segments for logprob in segment.logprobs or []]
    if episode.teacher_logprobs is None or not len(behaviour) == episode.num_sampled == len(episode.teacher_logprobs):
        raise RunError(
            f"the teacher is compared with the logprobs of the sampling, and sample {episode.id} came without",
            hint="use rollout servers that return logprobs",
        )
    return np.subtract(episode.teacher_logprobs, behaviour, dtype=np.float64)


def add_teacher(episode: Episode, sequences: Sequence[TrainingSequence], *, coef: float) -> None:
    """Add the teacher's term to the advantages of the trained tokens. `sequences`: all of the episode, in order."""
    ratios_S = log_ratios_S(episode)
    with_tokens = iter(sequences)
    for segment in episode.segments:
        tokens = [token for turn in segment.turns for token in range(turn.start, turn.end)]
        of_segment_S, ratios_S = ratios_S[: len(tokens)], ratios_S[len(tokens) :]
        if not any(turn.num_tokens and turn.masked is None for turn in segment.turns):
            continue
        sequence = next(with_tokens)
        term_L = np.zeros(sequence.num_tokens)
        term_L[tokens] = coef * of_segment_S
        sequence.advantages_L[sequence.loss_mask_L] += term_L[sequence.loss_mask_L].astype(np.float32)


def teacher_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`teacher/kl`, the mean of log π_behaviour − log π_teacher over all sampled tokens, and their number."""
    ratios = [log_ratios_S(episode) for group in groups for episode in group.episodes]
    num_tokens = sum(len(ratios_S) for ratios_S in ratios)
    kl = {"teacher/kl": -float(sum(ratios_S.sum() for ratios_S in ratios)) / num_tokens} if num_tokens else {}
    return kl | {"teacher/tokens": num_tokens}
