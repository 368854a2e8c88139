"""What the options of another trainer become here: the form of a table, and the rows that TRL and ms-swift share.

A table is data. `imports/` writes run files by it, and `other_names.py` takes its hints from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PeerOptions:
    """Every option of another trainer, by what becomes of it. Defaults are that trainer's, in its own words."""

    name: str
    version: str
    """In which the options and their defaults were read."""
    settings: Mapping[str, tuple[str, Any]]
    """Option → the setting of the same meaning, and the option's default."""
    computed: Mapping[str, tuple[str, Any]]
    """Option → a setting that it decides together with other options, and the option's default."""
    server_flags: Mapping[str, tuple[str, Any]]
    """Option → the flag of `grpo-rollout serve`, and the option's default."""
    not_needed: Mapping[str, str]
    """Option → why the run is the same without it."""
    not_here: Mapping[str, str]
    """Option → what a run of ours has in its place, or that it has nothing."""
    older: Mapping[str, str]
    """Name of an option in earlier versions → its name now."""

    @property
    def known(self) -> set[str]:
        rows = (self.settings, self.computed, self.server_flags, self.not_needed, self.not_here, self.older)
        return {option for options in rows for option in options}

    def default(self, option: str) -> Any:
        for options in (self.settings, self.computed, self.server_flags):
            if option in options:
                return options[option][1]
        raise KeyError(option)


def by_option(reasons: Mapping[str, str]) -> dict[str, str]:
    """Turn reason → options, separated by blanks, into option → reason."""
    return {option: reason for reason, options in reasons.items() for option in options.split()}


OFF_WITHOUT_VALUE = {"fipo_clip_range", "fipo_safety_threshold"}
"""Options that null in a file switches off, although they have a default."""
TRAINING_SETTINGS: dict[str, tuple[str, Any]] = {
    "num_train_epochs": ("num_train_epochs", 3.0),
    "seed": ("seed", 42),
    "optim": ("optimizer.name", "adamw_torch_fused"),
    "adam_beta1": ("optimizer.adam_beta1", 0.9),
    "adam_epsilon": ("optimizer.adam_epsilon", 1e-8),
    "max_grad_norm": ("optimizer.max_grad_norm", 1.0),
    "run_name": ("logging.run_name", None),
    "save_total_limit": ("checkpoint.save_total_limit", None),
}
"""Options of transformers' TrainingArguments, which both trainers take."""
TRAINING_COMPUTED: dict[str, tuple[str, Any]] = {
    "max_steps": ("max_steps", -1),
    "save_steps": ("checkpoint.save_steps", 500),
    "save_strategy": ("checkpoint.save_steps", "steps"),
    "eval_steps": ("eval.eval_steps", None),
    "warmup_steps": ("optimizer.warmup_steps", 0),
    "lr_scheduler_kwargs": ("optimizer.lr_scheduler_kwargs", None),
    "deepspeed": ("deepspeed.zero_stage", None),
    "metric_for_best_model": ("checkpoint.metric_for_best", None),
    "greater_is_better": ("checkpoint.greater_is_better", None),
    "load_best_model_at_end": ("checkpoint.metric_for_best", False),
}
TRAINING_NOT_NEEDED = by_option(
    {
        "metrics are written after every step": "logging_strategy logging_steps logging_first_step log_on_each_node "
        "logging_nan_inf_filter include_num_input_tokens_seen skip_memory_metrics",
        "the log is set by GRPO_LOG_LEVEL": "log_level log_level_replica",
        "logging.progress decides on the progress bar": "disable_tqdm",
        "rows are read once, before the first step": "dataloader_drop_last dataloader_num_workers "
        "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
        "dataloader_multiprocessing_context dataloader_in_order accelerator_config",
        "every column reaches the rewards": "remove_unused_columns label_names",
        "deepspeed.tokens_per_micro_batch bounds a pass by its tokens, for held-out rows, too": "auto_find_batch_size "
        "per_device_eval_batch_size eval_accumulation_steps batch_eval_metrics eval_do_concat_batches "
        "eval_use_gather_object prediction_loss_only include_for_metrics torch_empty_cache_steps",
        "held-out rows are always evaluated before the first step and after the last": "eval_on_start",
        "loss and gradient are counted over all ranks": "average_tokens_across_devices",
        "DeepSpeed joins the ranks": "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_static_graph ddp_backend local_rank",
        "grpo-train trains and evaluates": "do_train do_eval do_predict",
        "a debugging aid of transformers": "debug",
        "sampling is the rollout server's": "use_cache ds3_gather_for_generation",
        "a cross-entropy setting, which GRPO does not read": "label_smoothing_factor",
        "the device is found by itself": "use_cpu",
        "a checkpoint holds the random state and the position in the data": "save_on_each_node "
        "restore_callback_states_from_checkpoint",
    }
)
TRAINING_NOT_HERE = by_option(
    {
        "an optimizer has no other settings than weight_decay and adam_…": "optim_args optim_target_modules",
        "attention is not compiled; the trainer runs the model's own code": "torch_compile torch_compile_backend "
        "torch_compile_mode",
        "the loss is computed by our own chunked head": "use_liger_kernel liger_kernel_config",
        "there is no noise on embeddings": "neftune_noise_alpha",
        "training is in bfloat16 or float32 throughout": "bf16_full_eval fp16_full_eval tf32",
        "activations are recomputed the one way that transformers does by default": "gradient_checkpointing_kwargs",
        "the first evaluation is before the first step": "eval_delay",
        "a checkpoint is always whole, and checkpoint.async_save writes it beside the training": "save_only_model "
        "enable_jit_checkpoint",
        "nothing is uploaded: `hf upload RUN_DIR/model` does it": "push_to_hub hub_token hub_private_repo hub_model_id "
        "hub_strategy hub_always_push hub_revision",
        "a resumed run goes on at its own place in the data": "ignore_data_skip",
        "seed decides on the order of the rows, too": "data_seed full_determinism train_sampling_strategy "
        "length_column_name",
        "the ranks are DeepSpeed's; deepspeed.sequence_parallel_size is for long sequences": "parallelism_config fsdp "
        "fsdp_config",
        "trackio is set up by its own variables": "trackio_space_id trackio_bucket_id trackio_static_space_id",
        "`grpo-train RUN.yaml --resume` goes on from the newest checkpoint of run_dir; one of another trainer is no "
        "start for it": "resume_from_checkpoint",
    }
)
