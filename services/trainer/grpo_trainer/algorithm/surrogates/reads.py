"""What a surrogate declares that it reads, so that the engine prepares exactly that."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...config.algorithm import AlgorithmConfig

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Reads:
    """What a surrogate reads of a micro-batch besides its tokens, episodes and advantages. The policy's own logprobs,
    which carry the gradient, are an argument."""

    old: bool = True
    """`old_logprobs_N`, π_old: the trainer's own logprobs from before the first update for a fresh token, the server's
    for a stale one. Costs a forward pass when a generation batch makes several updates."""
    proximal: bool = False
    """π_old is the trainer's own for stale tokens too: the proximal policy, apart from the one that sampled."""
    behaviour: bool = False
    """`rollout_logprobs_N`, μ: the server's. A sample without them is then an error; undeclared, they may be NaN."""
    reference: bool = False
    """`ref_logprobs_N`: a frozen copy of the first model is kept."""
    entropy: bool = False
    """`entropy_N`, without a gradient."""
    level: bool = False
    """Ratios follow `importance_sampling_level`; undeclared, another level than `token` is refused."""
    zero_without_advantage: bool = False
    """Loss and gradient of a token are 0 where its advantage is 0, whatever its ratio: such samples are skipped."""
    corrects_mismatch: bool = False
    """The surrogate weighs by the trainer's over the server's probability itself; `correction.py` does not again."""
    by_token: bool = False
    """At `importance_sampling_level` `token` the loss of a token depends on no logprob but its own: the output head
    computes gradients while the token's logits are at hand."""
    masks_entropy: bool = False
    """With `top_entropy_quantile` below 1 the surrogate reads `high_entropy_N` itself; `entropy_mask.py` does not mask
    its loss again."""
    token_correction: bool = False
    """The surrogate combines the corrections of single tokens: an `importance_sampling_mode` of sequences, with one for
    the whole episode, is refused."""
    episode_advantage: bool = False
    """The surrogate reads the advantage of an episode: a teacher, which gives each token its own, is refused."""


def reads(**declared: bool) -> Callable[[FunctionT], FunctionT]:
    """Declare what a surrogate reads: `@reads(behaviour=True)` above the function. `Reads()` holds without it."""
    reading = Reads(**declared)

    def declare(function: FunctionT) -> FunctionT:
        setattr(function, "reads", reading)  # noqa: B010 (a function has no such attribute for the type checker)
        return function

    return declare


def reads_of(surrogate: Callable[..., Any]) -> Reads:
    declared = getattr(surrogate, "reads", None)
    return declared if isinstance(declared, Reads) else Reads()


def prepared_for(surrogate: Callable[..., Any], algorithm: AlgorithmConfig) -> Reads:
    """What has to be there for the whole loss: for the surrogate, the correction and the KL term."""
    own = reads_of(surrogate)
    corrected = algorithm.importance_sampling_correction and not own.corrects_mismatch
    with_kl = algorithm.beta_of_loss > 0.0
    masked = algorithm.off_policy_mask_threshold is not None
    with_ratio = with_kl and algorithm.kl_estimator == "unbiased"
    old = own.old or own.proximal or corrected or with_ratio or masked
    return replace(own, old=old, reference=own.reference or with_kl)


def is_by_token(surrogate: Callable[..., Any], algorithm: AlgorithmConfig) -> bool:
    """Whether the whole loss of a token, without a bonus of entropy, depends on no logprob but its own."""
    own = reads_of(surrogate)
    by_episode = (
        algorithm.importance_sampling_level != "token",
        algorithm.off_policy_mask_threshold is not None,
        algorithm.importance_sampling_correction
        and not own.corrects_mismatch
        and not algorithm.importance_sampling_mode.startswith("token"),
    )
    return own.by_token and not any(by_episode)


def keeps_reference(surrogate: Callable[..., Any], algorithm: AlgorithmConfig) -> bool:
    """Whether the run keeps a reference model: for the loss, or for the KL in the reward."""
    return algorithm.kl_in_reward or prepared_for(surrogate, algorithm).reference
