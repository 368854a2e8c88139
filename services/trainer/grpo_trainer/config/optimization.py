"""The sections `optimizer` and `deepspeed` of a run file."""

import logging
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from .lr_schedule import LrSchedulerKwargs, LrSchedulerType
from .section import Positive, Seconds, Section, Share

log = logging.getLogger(__name__)

STATE_BYTES = {"adamw": 8.0, "adamw_8bit": 2.0 + 8.0 / 256, "sgd": 0.0}
"""Optimizer → bytes of its state for each trained number: two moments in float32; in eight bits, with two scales for
each block of 256; none."""


class OptimizerConfig(Section):
    """The optimizer and its schedule. Steps of the schedule are optimizer updates."""

    name: Literal["adamw", "adamw_8bit", "sgd"] = Field(
        "adamw",
        description="adamw_8bit keeps AdamW's state in eight bits a number, by bitsandbytes; sgd is plain descent, "
        "without momentum and without a state.",
    )
    learning_rate: float = Field(1e-6, ge=0.0)
    lr_scheduler_type: LrSchedulerType = "constant"
    lr_scheduler_kwargs: LrSchedulerKwargs = Field(
        default_factory=LrSchedulerKwargs,
        description="Parameters of the schedule, as min_lr_rate; see docs/trainer.md.",
    )
    warmup_steps: int = Field(0, ge=0)
    warmup_ratio: Share = Field(
        0.0, description="Share of all updates with a growing learning rate; used when warmup_steps is 0."
    )
    loraplus_lr_ratio: Positive | None = Field(
        None,
        description="LoRA+: learning rate of an adapter's B over that of its A, which is learning_rate; "
        "arXiv 2402.12354 takes 16. Absent: both have one.",
    )
    weight_decay: float = Field(0.0, ge=0.0)
    adam_beta1: Share = 0.9
    adam_beta2: Share = 0.999
    adam_epsilon: Positive = 1e-8
    max_grad_norm: Positive = 1.0
    max_skipped_updates: int = Field(
        3, ge=0, description="Updates in a row without a finite gradient that a run survives."
    )

    @property
    def state_bytes(self) -> float:
        """Bytes of the optimizer's state for each trained number, beside a float32 copy of the weights."""
        return STATE_BYTES[self.name]

    @property
    def layout(self) -> str:
        """What the optimizer's state in a checkpoint is of."""
        return self.name if self.loraplus_lr_ratio is None else f"{self.name} with loraplus_lr_ratio"

    @model_validator(mode="after")
    def _the_schedule_has_its_parameters(self) -> "OptimizerConfig":
        if fault := self.lr_scheduler_kwargs.fault(self.lr_scheduler_type, self.learning_rate):
            raise ValueError(fault)
        return self


def _number(value: Any) -> Any:
    """Convert the string of a flag: pydantic does not, for a choice between numbers."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


class DeepSpeedConfig(Section):
    """How the trainer spreads over its devices."""

    zero_stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_number)] = Field(
        2, description="What ranks share: 1 the optimizer's state, 2 gradients, too, 3 weights, too; 0 nothing."
    )
    nproc_per_node: int = Field(1, ge=1, description="Ranks on this machine: GPUs, or processes without GPUs.")
    tokens_per_micro_batch: int = Field(
        16384,
        ge=1,
        description="Tokens in one forward and backward pass on one rank, padding included; with shared "
        "prefixes also what attention keeps of them for each sample, counted in tokens.",
    )
    share_prefixes: Literal["auto", "never"] = Field(
        "auto",
        description="Compute each token of a micro-batch once, also where several samples share it: auto where the "
        "model's family allows it, never for a padded row each. Changes neither loss nor gradient.",
    )
    sequence_parallel_size: int = Field(
        1,
        ge=1,
        description="Ranks that compute each micro-batch together, a share of its tokens each, for sequences that are "
        "too long for one GPU; a divisor of the number of ranks and of the model's attention heads. A micro-batch then "
        "has that many times tokens_per_micro_batch. Changes neither loss nor gradient of a micro-batch.",
    )
    offload_optimizer: bool = Field(False, description="Keep the optimizer's state in CPU memory.")
    overlap_comm: bool = Field(
        False,
        description="Reduce gradients during the backward pass (ZeRO stage 2 or 3); takes a second bucket of memory.",
    )
    coalesce_grad_reduction: bool = Field(
        False,
        description="Reduce gradients once an update instead of once a micro-batch (ZeRO stage 3; 0 and 1 do anyway). "
        "Every rank then keeps whole gradients in float32: 4 bytes for each trained parameter.",
    )
    timeout_s: Seconds = Field(1800.0, description="Limit of a collective between ranks.")

    @model_validator(mode="before")
    @classmethod
    def _packing_was_before_sharing(cls, given: Any) -> Any:
        if isinstance(given, dict) and "packing" in given:
            log.warning(
                "deepspeed.packing is no setting any more and is ignored: deepspeed.share_prefixes took its place"
            )
            return {name: value for name, value in given.items() if name != "packing"}
        return given

    @model_validator(mode="after")
    def _overlap_needs_sharded_gradients(self) -> "DeepSpeedConfig":
        if self.overlap_comm and self.zero_stage < 2:
            raise ValueError(f"overlap_comm needs zero_stage 2 or 3, not {self.zero_stage}")
        return self

    @model_validator(mode="after")
    def _ranks_share_rows_of_shared_prefixes(self) -> "DeepSpeedConfig":
        if self.sequence_parallel_size > 1 and self.share_prefixes == "never":
            raise ValueError(
                "sequence_parallel_size deals out rows with shared prefixes, and share_prefixes is never; leave one out"
            )
        return self

    @model_validator(mode="after")
    def _one_reduction_is_for_sharded_weights(self) -> "DeepSpeedConfig":
        if not self.coalesce_grad_reduction:
            return self
        if self.zero_stage < 2:
            raise ValueError(
                f"zero_stage {self.zero_stage} reduces gradients once an update as it is; leave out "
                "coalesce_grad_reduction, which is for zero_stage 3"
            )
        if self.zero_stage == 2:
            raise ValueError(
                "coalesce_grad_reduction keeps whole gradients, and zero_stage 2 shards them; zero_stage 1 keeps them "
                "whole and reduces them once an update: set that, and leave coalesce_grad_reduction out"
            )
        if self.overlap_comm:
            raise ValueError(
                "overlap_comm reduces gradients during each backward pass, and coalesce_grad_reduction after the last "
                "of an update; set one of them"
            )
        return self
