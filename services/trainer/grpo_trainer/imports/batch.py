"""The arithmetic of batch sizes: TRL's and ms-swift's, whose formula is the same.

They count completions of one device in one micro-batch, and everything else in multiples of that:

    generation batch = per_device_train_batch_size × processes × steps_per_generation
    updates of a generation batch = steps_per_generation / gradient_accumulation_steps

`steps_per_generation` is by default `gradient_accumulation_steps`: one update. Here the name means the updates
themselves, and a step is a whole generation batch, so that what they count in updates is divided by those of a batch.
"""

import math
from dataclasses import dataclass

from ..errors import UsageError

REFUSED_THERE = "; TRL and ms-swift refuse that, too"


@dataclass(frozen=True)
class Batch:
    """A generation batch. `formula` is how it came about, `remark` what is otherwise than there."""

    size: int
    """Completions."""
    updates: int
    """Optimizer updates of one pass over it."""
    formula: str
    updates_formula: str
    remark: str | None = None

    def batches_of(self, updates: float, num_iterations: int) -> int:
        """The generation batches in which so many optimizer updates are made, rounded up."""
        return max(1, math.ceil(updates / (self.updates * num_iterations)))


def generation_batch(
    *,
    per_device: int,
    processes: int,
    accumulation: int,
    generation_batch_size: int | None,
    steps_per_generation: int | None,
    num_generations: int,
) -> Batch:
    """Compute a generation batch as TRL and ms-swift do. Raises UsageError where they refuse, too."""
    for name, value in (("per_device_train_batch_size", per_device), ("gradient_accumulation_steps", accumulation)):
        if value < 1:
            raise UsageError(f"{name} {value} is not above 0")
    together = per_device * processes
    counted = f"per_device_train_batch_size {per_device} x {processes} process{'es' if processes > 1 else ''}"
    if generation_batch_size is not None and generation_batch_size % together:
        raise UsageError(f"generation_batch_size {generation_batch_size} is no multiple of {counted}")
    if steps_per_generation is None:
        steps = accumulation if generation_batch_size is None else generation_batch_size // together
    else:
        steps = steps_per_generation
        if generation_batch_size not in (None, together * steps):
            raise UsageError(
                f"generation_batch_size {generation_batch_size} is not {counted} x steps_per_generation {steps}"
            )
    is_default = steps_per_generation is None and generation_batch_size is None
    name = "gradient_accumulation_steps" if is_default else "steps_per_generation"
    size, updates, remark = together * steps, 1, None
    formula = f"{counted} x {name} {steps} = {size}"
    if steps % accumulation == 0:
        updates = steps // accumulation
    elif accumulation % steps == 0:
        size = together * accumulation
        remark = (
            f"an update of theirs takes gradient_accumulation_steps {accumulation} / steps_per_generation {steps} "
            "generation batches, all sampled by one policy: here they are one generation batch"
        )
        formula = f"{counted} x gradient_accumulation_steps {accumulation} = {size}"
    else:
        remark = (
            f"with steps_per_generation {steps} and gradient_accumulation_steps {accumulation} updates lie across "
            "generation batches: here a generation batch is one update"
        )
    if size % num_generations:
        raise UsageError(
            f"{formula} completions are no whole groups of num_generations {num_generations}{REFUSED_THERE}",
            hint="take a num_generations that divides it, or another per_device_train_batch_size",
        )
    return Batch(size, updates, formula, f"{name} {steps} / gradient_accumulation_steps {accumulation}", remark)
