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


def learning_rates(config: OptimizerConfig, *, total_updates: int) -> Callable[[int], float]:
    """Return the function from the number of an optimizer update (from 0) to its rate; skipped updates count.

    After `total_updates` the rate stays where it is: some curves would rise again. Raises UsageError for a decay that
    is longer than what the warm-up leaves, in which the rate would jump.
    """
    kind, parameters = config.lr_scheduler_type, config.lr_scheduler_kwargs.given()
    left = total_updates - warmup_updates(config, total_updates)
    if (config.lr_scheduler_kwargs.num_decay_steps or 0) > left:
        raise UsageError(
            f"optimizer.lr_scheduler_kwargs.num_decay_steps {config.lr_scheduler_kwargs.num_decay_steps} is more than "
            f"the {left} updates after the warm-up",
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
