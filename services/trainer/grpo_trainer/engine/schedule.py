"""The number of steps, and the learning rate as a function of the update's number: a resumed run needs no state.

The factors are those of transformers' `get_constant_schedule_with_warmup`, `get_linear_schedule_with_warmup` and
`get_cosine_schedule_with_warmup` (half a period). As there, the first update of a warm-up has rate 0.
"""

import math

from ..config.optimization import OptimizerConfig
from ..config.run_config import RunConfig


def number_of_steps(config: RunConfig, num_rows: int) -> int:
    """Return `max_steps`, or the number of batches in `num_train_epochs` over the rows; the last batch is filled up."""
    if config.max_steps is not None:
        return config.max_steps
    return max(1, math.ceil(config.num_train_epochs * num_rows / config.rollout.groups_per_batch))


def learning_rate(config: OptimizerConfig, *, update: int, total_updates: int) -> float:
    """Return the rate of optimizer update `update` (from 0) of `total_updates`; skipped updates count."""
    return config.learning_rate * _factor(config, update, total_updates)


def warmup_updates(config: OptimizerConfig, total_updates: int) -> int:
    """Return `warmup_steps`, or the share `warmup_ratio` of all updates, rounded up."""
    return config.warmup_steps or math.ceil(config.warmup_ratio * total_updates)


def _factor(config: OptimizerConfig, update: int, total_updates: int) -> float:
    warmup = warmup_updates(config, total_updates)
    if update < warmup:
        return update / warmup
    if config.lr_scheduler_type == "constant":
        return 1.0
    progress = min((update - warmup) / max(1, total_updates - warmup), 1.0)
    if config.lr_scheduler_type == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
