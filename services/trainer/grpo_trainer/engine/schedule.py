"""The number of steps, and the learning rate as a function of the update's number: a resumed run needs no state.

The curves are transformers' own. As there, the first update of a warm-up has rate 0; `constant` has a warm-up, too.
"""

import math
from collections.abc import Callable

import torch
from transformers import get_scheduler

from ..config.optimization import OptimizerConfig
from ..config.run_config import RunConfig


def number_of_steps(config: RunConfig, num_rows: int) -> int:
    """Return `max_steps`, or the number of batches in `num_train_epochs` over the rows; the last batch is filled up."""
    if config.max_steps is not None:
        return config.max_steps
    return max(1, math.ceil(config.num_train_epochs * num_rows / config.rollout.groups_per_batch))


def learning_rates(config: OptimizerConfig, *, total_updates: int) -> Callable[[int], float]:
    """Return the function from the number of an optimizer update (from 0) to its rate; skipped updates count.

    After `total_updates` the rate stays where it is: some curves would rise again.
    """
    kind, parameters = config.lr_scheduler_type, config.lr_scheduler_kwargs.given()
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
