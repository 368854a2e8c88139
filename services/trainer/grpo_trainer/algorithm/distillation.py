"""On-policy distillation: a teacher's logprobs of the sampled tokens, in the advantages of single tokens.

    d_t = log π_teacher(t) − log π_behaviour(t)

    add        A_t  +  coef · d_t
    reweight   A_t · (1 − coef + coef · w_t),   w_t = exp(sign(A_t) · d_t), clipped to 1 ± reweight_clip
    gate       A_t  +  coef · sigmoid(gate_beta · d_t)

add: −log π_behaviour + log π_teacher of a sampled token is an unbiased estimate of −KL(π ‖ π_teacher) at that position,
the reverse KL, whose gradient is REINFORCE with this term as the reward and no reward for what follows: a discount of
0, as in "On-Policy Distillation" (Thinking Machines Lab, 2025) and slime's `--opd-kl-coef`. π_behaviour are the
server's logprobs, those of the sampling. Left out on purpose: the KL over the whole vocabulary (GKD, arXiv
2306.13649), which needs the teacher's logits of every token.

reweight moves the credit of an episode to the tokens that the teacher finds decisive and never turns its sign: RLSD
(arXiv 2604.03128), ms-swift's `advantage_reweight rlsd`. gate draws the policy towards the teacher where that is the
surer of the two: the gradient of SDAR's loss (arXiv 2605.15155), −coef · sigmoid(·) · ∇ log π, for a policy that is
still the one that sampled; SDAR has it beside the loss, outside its clip and its normaliser.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config.teacher import TeacherConfig
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


def add_teacher(episode: Episode, sequences: Sequence[TrainingSequence], teacher: TeacherConfig) -> None:
    """Let the teacher into the advantages of the trained tokens. `sequences`: all of the episode, in order."""
    ratios_S = log_ratios_S(episode)
    with_tokens = iter(sequences)
    for segment in episode.segments:
        tokens = [token for turn in segment.turns for token in range(turn.start, turn.end)]
        of_segment_S, ratios_S = ratios_S[: len(tokens)], ratios_S[len(tokens) :]
        if not any(turn.num_tokens and turn.masked is None for turn in segment.turns):
            continue
        sequence = next(with_tokens)
        ratio_L, trained_L = np.zeros(sequence.num_tokens), sequence.loss_mask_L
        ratio_L[tokens] = of_segment_S
        advantages = sequence.advantages_L[trained_L].astype(np.float64)
        sequence.advantages_L[trained_L] = taught(advantages, ratio_L[trained_L], teacher)


def taught(
    advantages: NDArray[np.float64], log_ratios: NDArray[np.float64], teacher: TeacherConfig
) -> NDArray[np.float64]:
    """The advantages of some tokens with what the teacher finds of each."""
    coef = teacher.coef
    match teacher.form:
        case "add":
            return advantages + coef * log_ratios
        case "gate":
            # The sigmoid by tanh, which overflows for no ratio.
            return advantages + coef * 0.5 * (1.0 + np.tanh(0.5 * teacher.gate_beta * log_ratios))
        case "reweight":
            # Clipped before the exponential: log is monotonic, and a ratio may be beyond what exp takes.
            highest = np.log1p(teacher.reweight_clip)
            weights = np.exp(np.minimum(np.sign(advantages) * log_ratios, highest))
            weights = np.maximum(weights, 1.0 - teacher.reweight_clip)
            changed = advantages * (1.0 - coef + coef * weights)
            return np.where(advantages > 0.0, advantages, changed) if teacher.negative_only else changed


def teacher_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`teacher/kl`, the mean of log π_behaviour − log π_teacher over all sampled tokens, and their number."""
    ratios = [log_ratios_S(episode) for group in groups for episode in group.episodes]
    num_tokens = sum(len(ratios_S) for ratios_S in ratios)
    kl = {"teacher/kl": -float(sum(ratios_S.sum() for ratios_S in ratios)) / num_tokens} if num_tokens else {}
    return kl | {"teacher/tokens": num_tokens}
