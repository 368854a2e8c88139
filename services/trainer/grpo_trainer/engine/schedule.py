"""The number of steps, and the learning rate as a function of the update's number: a resumed run needs no state.

The curves are transformers' own. As there, the first update of a linear warm-up has rate 0; `constant` has one, too.
"""

import math
from collections.abc import Callable

import torch
from transformers import get_scheduler

from ..config.optimization import OptimizerConfig
from ..config.run_config import RunConfig
from ..errors import UsageError


def number_of_steps(config: RunConfig, num_rows: int) -> int:
    """Return `max_steps`, or the number of batches in `num_train_epochs` over the rows; the last batch is filled up."""
    if config.max_steps is not None:
        return config.max_steps
    return max(1, math.ceil(config.num_train_epochs * num_rows / config.rollout.groups_per_batch))


def number_of_updates(config: RunConfig, num_steps: int) -> int:
    return num_steps * config.algorithm.steps_per_generation * config.algorithm.num_iterations


def schedule_doubts(config: OptimizerConfig, *, total_updates: int) -> list[str]:
    """Return a sentence for a warm-up, and one for a decay, that the run ends before."""
    found, kwargs = [], config.lr_scheduler_kwargs
    warmup = warmup_updates(config, total_updates)
    setting = "warmup_steps" if config.warmup_steps else "warmup_ratio"
    if warmup >= total_updates:
        found.append(
            f"the run ends in the warm-up of the learning rate, by optimizer.{setting}: {warmup} of {total_updates} "
            "updates"
        )
    elif kwargs.num_decay_steps is not None and kwargs.num_stable_steps is not None:
        end = warmup + kwargs.num_stable_steps + kwargs.num_decay_steps
        if end > total_updates:
            found.append(
                f"the decay of the learning rate ends after {end} updates, and the run after {total_updates}: lower "
                "optimizer.lr_scheduler_kwargs.num_stable_steps"
            )
    return found


def learning_rates(config: OptimizerConfig, *, total_updates: int) -> Callable[[int], float]:
    """Return the function from the number of an optimizer update (from 0) to its rate; skipped updates count.

    After `total_updates` the rate stays where it is: some curves would rise again. Raises UsageError for a decay that
    is longer than what the warm-up leaves, in which the rate would jump.
    """
    kind, parameters = config.lr_scheduler_type, config.lr_scheduler_kwargs.given()
    left = max(total_updates - warmup_updates(config, total_updates), 0)
    decay = config.lr_scheduler_kwargs.num_decay_steps
    if decay is not None and decay > left:
        raise UsageError(
            f"optimizer.lr_scheduler_kwargs.num_decay_steps {decay} is more than the {left} updates after the warm-up",
            hint="lower it, or the warm-up, or train for more steps",
        )
    scheduler = get_scheduler(
        "constant_with_warmup" if kind == "constant" else kind,
        torch.optim.SGD([torch.zeros(1)], lr=config.learning_rate),  # a curve belongs to an optimizer there
        num_warmup_steps=warmup_updates(config, total_updates),
        num_training_steps=None if "num_stable_steps" in parameters else total_updates,  # of both, it warns
        scheduler_specific_kwargs=parameters,
    )
    (factor,) = scheduler.lr_lambdas
    return lambda update: config.learning_rate * factor(min(update, total_updates))


def warmup_updates(config: OptimizerConfig, total_updates: int) -> int:
    """Return `warmup_steps`, or the share `warmup_ratio` of all updates, rounded up."""
    return config.warmup_steps or math.ceil(config.warmup_ratio * total_updates)
