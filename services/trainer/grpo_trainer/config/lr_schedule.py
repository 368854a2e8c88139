"""The schedules of the learning rate and their parameters, by the names that transformers gives them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_serializer

from .section import Positive, Section, Share

Curve = Literal["linear", "cosine", "1-sqrt"]
LrSchedulerType = Literal[
    "constant",
    "linear",
    "cosine",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
PARAMETERS: Mapping[LrSchedulerType, frozenset[str]] = {
    "constant": frozenset(),
    "linear": frozenset(),
    "cosine": frozenset({"num_cycles"}),
    "cosine_with_min_lr": frozenset({"min_lr", "min_lr_rate", "num_cycles"}),
    "cosine_warmup_with_min_lr": frozenset({"min_lr", "min_lr_rate", "num_cycles", "warmup_lr_rate"}),
    "cosine_with_restarts": frozenset({"num_cycles"}),
    "polynomial": frozenset({"lr_end", "power"}),
    "inverse_sqrt": frozenset({"timescale"}),
    "warmup_stable_decay": frozenset(
        {"num_decay_steps", "num_stable_steps", "min_lr_ratio", "num_cycles", "warmup_type", "decay_type"}
    ),
}
LOWEST_LR = 1e-7
"""The rate at which transformers ends `polynomial` without `lr_end`."""


class LrSchedulerKwargs(Section):
    """Parameters of a schedule. One that is absent is as transformers has it. Steps are optimizer updates."""

    min_lr: float | None = Field(None, ge=0.0, description="Rate at the end of cosine_(warmup_)with_min_lr.")
    min_lr_rate: Share | None = Field(None, description="The same as a share of learning_rate.")
    warmup_lr_rate: Share | None = Field(
        None, description="Share of learning_rate at which the warm-up of cosine_warmup_with_min_lr begins."
    )
    num_cycles: Positive | None = Field(
        None, description="Waves of a cosine (0.5 is one descent), or descents of cosine_with_restarts."
    )
    lr_end: float | None = Field(None, ge=0.0, description="Rate at the end of polynomial.")
    power: Positive | None = Field(None, description="Of polynomial; 1 is a straight line.")
    timescale: Positive | None = Field(None, description="Of inverse_sqrt, in updates: the warm-up's length if absent.")
    num_decay_steps: int | None = Field(None, ge=1, description="Updates at the end of warmup_stable_decay.")
    num_stable_steps: int | None = Field(
        None, ge=0, description="Updates between warm-up and decay of warmup_stable_decay; what is left if absent."
    )
    min_lr_ratio: Share | None = Field(None, description="Share of learning_rate at both ends of warmup_stable_decay.")
    warmup_type: Curve | None = Field(None, description="Of warmup_stable_decay.")
    decay_type: Curve | None = Field(None, description="Of warmup_stable_decay.")

    @model_serializer
    def given(self) -> dict[str, int | float | str]:
        """The parameters that are there, without a dozen nulls."""
        return {name: value for name, value in self if value is not None}

    def fault(self, schedule: LrSchedulerType, learning_rate: float) -> str | None:
        """Why these are no parameters of this schedule; None when they are."""
        readers = {name: [kind for kind, names in PARAMETERS.items() if name in names] for name in self.given()}
        foreign = [name for name, kinds in readers.items() if schedule not in kinds]
        if foreign:
            return f"lr_scheduler_kwargs.{foreign[0]} is of {', '.join(readers[foreign[0]])}, not of {schedule}"
        if "min_lr" in PARAMETERS[schedule] and (self.min_lr is None) == (self.min_lr_rate is None):
            return f"{schedule} needs lr_scheduler_kwargs.min_lr or min_lr_rate, one of them"
        if schedule == "warmup_stable_decay" and self.num_decay_steps is None:
            return "warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps, the updates in which the rate falls"
        lowest = {"min_lr": self.min_lr, "lr_end": LOWEST_LR if self.lr_end is None else self.lr_end}
        for name, rate in lowest.items():
            if name in PARAMETERS[schedule] and rate is not None and rate >= learning_rate:
                return f"lr_scheduler_kwargs.{name} {rate:g} is not below learning_rate {learning_rate:g}"
        return None
