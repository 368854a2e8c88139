"""Advantage estimators, one small file each: rewards of groups → advantages of their episodes.

An estimator takes the rewards of the generation batch (`rewards.py`: totals, and each reward by name with its weight)
and the settings of the algorithm. It returns advantages in the shape of the totals, None where the total is None; in
place of a number it may return a list of one for each turn of the episode (`turn_advantages.py`). A
user's own is `FILE.py:NAME` in `algorithm.advantage_estimator`: such a function (`docs/trainer.md` has a whole one), or
an `Estimator`, which also declares what holds of it. What the function takes beyond these two arguments are parameters,
which `algorithm.advantage_estimator_params` sets.

A file has the name that a run file has for its estimator; reinforce_plus_plus.py has both that begin with its name.
rewards.py     what an estimator takes
own.py         a user's own, whose failures have its name
statistics.py  mean and standard deviation, where equal rewards are exactly equal
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...config.algorithm import AlgorithmConfig
from ...errors import UsageError
from ...extension import named
from ...parameters import with_parameters
from .gdpo import gdpo
from .grpo import grpo
from .maxrl import maxrl
from .own import Advantages, guarded
from .pass_at_k import pass_at_k
from .real import real
from .reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from .rewards import Rewards
from .rloo import rloo


@dataclass(frozen=True)
class Estimator:
    """A function and what it declares."""

    function: Callable[[Rewards, AlgorithmConfig], Advantages]
    zero_without_spread: bool | None = None
    """Whether a group whose totals are all equal gets advantage 0 throughout, so that `dynamic_sampling` loses nothing
    by replacing it; None: not declared, and taken on trust."""
    compares_in_group: bool = False
    """Whether a completion is worth what it differs from the others of its prompt: one alone has advantage 0."""
    scales: tuple[str, ...] | None = None
    """The values of `scale_rewards` that it reads, its default first; None: it does what it likes with the setting."""
    by_turn: bool = False
    """Whether it gives each turn an advantage of its own: `dynamic_sampling` then keeps a group whose totals are equal
    when the rewards of its turns differ."""
    takes_penalty: bool = True
    """Whether a KL that is subtracted from the totals reaches it and may make them negative."""
    learns_once: bool = False
    """Whether its advantages hold only as long as nothing has been learnt since the completions were sampled."""

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether a group whose totals are all equal is declared to teach."""
        return self.zero_without_spread is False

    def __call__(self, rewards: Rewards, algorithm: AlgorithmConfig) -> Advantages:
        return self.function(rewards, algorithm)


def _in_group(function: Callable[[Rewards, AlgorithmConfig], Advantages], **declared: Any) -> Estimator:
    return Estimator(function, compares_in_group=True, **declared)


ESTIMATORS: dict[str, Estimator] = {
    "grpo": _in_group(grpo, zero_without_spread=True, scales=("group", "batch", "none")),
    "rloo": _in_group(rloo, zero_without_spread=True, scales=("none", "batch")),
    "reinforce_plus_plus": Estimator(reinforce_plus_plus, zero_without_spread=False, scales=("batch",)),
    "reinforce_plus_plus_baseline": _in_group(
        reinforce_plus_plus_baseline, zero_without_spread=True, scales=("batch",)
    ),
    # Rewards that differ may add up to equal totals.
    "gdpo": _in_group(gdpo, zero_without_spread=False, scales=("batch",), takes_penalty=False),
    "maxrl": _in_group(maxrl, zero_without_spread=True, scales=("none",), takes_penalty=False),
    "pass_at_k": _in_group(pass_at_k, zero_without_spread=True, scales=("none", "group")),
    "real": _in_group(real, zero_without_spread=True, scales=("none",), takes_penalty=False, learns_once=True),
}


def estimator_of(algorithm: AlgorithmConfig) -> Estimator:
    """Look up the estimator that the run file names, with its parameters.

    Raises UsageError for an unknown name, for parameters that it does not take, for a `scale_rewards` that it does not
    read, and when `dynamic_sampling` would replace groups that it trains on, `kl_in_reward` would not work with it, or
    there is more to learn from a batch than it knows of.
    """
    name, scale = algorithm.advantage_estimator, algorithm.scale_rewards
    found = named(name, ESTIMATORS, setting="algorithm.advantage_estimator")
    estimator = found if isinstance(found, Estimator) else Estimator(found)
    function = with_parameters(
        estimator.function,
        algorithm.advantage_estimator_params,
        called_with=("rewards", "algorithm"),
        name=name,
        setting="algorithm.advantage_estimator",
        key="algorithm.advantage_estimator_params",
    )
    estimator = replace(estimator, function=function if name in ESTIMATORS else guarded(function, name))
    if scale is not None and estimator.scales is not None and scale not in estimator.scales:
        raise UsageError(
            f"algorithm.scale_rewards {scale}: the estimator {name} always divides as {estimator.scales[0]}"
            if len(estimator.scales) == 1
            else f"algorithm.scale_rewards {scale}: the estimator {name} knows {' and '.join(estimator.scales)}",
            hint=f"leave algorithm.scale_rewards out, which is {estimator.scales[0]} here",
        )
    if algorithm.dynamic_sampling and estimator.learns_from_equal_rewards:
        raise UsageError(
            f"algorithm.dynamic_sampling replaces groups with equal rewards, and the estimator {name} trains on them",
            hint="switch algorithm.dynamic_sampling off, or choose another algorithm.advantage_estimator",
        )
    if algorithm.kl_in_reward and not estimator.takes_penalty:
        raise UsageError(
            f"algorithm.kl_in_reward subtracts the KL from total rewards, and the estimator {name} needs each reward "
            "by itself, or none below 0",
            hint="set algorithm.kl_in_reward false to have the KL in the loss, or choose another estimator",
        )
    several = ("num_iterations", 1), ("steps_per_generation", 1), ("max_staleness", 0)
    if estimator.learns_once and any(getattr(algorithm, setting) > most for setting, most in several):
        given = ", ".join(f"{setting} {getattr(algorithm, setting)}" for setting, _ in several)
        raise UsageError(
            f"the estimator {name} knows nothing of what was learnt since a completion was sampled, and the run has "
            f"algorithm.{given}",
            hint="make one update of each batch: num_iterations 1, steps_per_generation 1 and max_staleness 0",
        )
    return estimator
