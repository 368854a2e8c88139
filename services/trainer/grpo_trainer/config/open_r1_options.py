"""The options of open-r1's script, `src/open_r1/grpo.py`: TRL's, and those that it adds."""

from dataclasses import replace

from .peer_options import by_option
from .trl_options import TRL

OPEN_R1 = replace(
    TRL,
    computed={
        **TRL.computed,
        "chat_template": ("model.chat_template", None),
        "system_prompt": ("data.system", None),
        "dataset_prompt_column": ("data.prompt_column", "prompt"),
        "cosine_min_value_wrong": ("reward.params", 0.0),
        "cosine_max_value_wrong": ("reward.params", -0.5),
        "cosine_min_value_correct": ("reward.params", 0.5),
        "cosine_max_value_correct": ("reward.params", 1.0),
        "cosine_max_len": ("reward.params", 1000),
        "repetition_n_grams": ("reward.params", 3),
        "repetition_max_penalty": ("reward.params", -1.0),
        "max_completion_len": ("reward.params", 16384),
        "soft_punish_cache": ("reward.params", 4096),
    },
    not_needed={
        **TRL.not_needed,
        **by_option(
            {
                "completions.jsonl has every completion": "wandb_log_unique_prompts",
                "the reward server has a sandbox of its own": "code_provider e2b_router_url morph_router_url "
                "parallel_code_exec_per_proc ioi_provider",
            }
        ),
    },
    not_here={
        **TRL.not_here,
        **by_option(
            {
                "wandb reads WANDB_ENTITY and WANDB_RUN_GROUP, set for the trainer": "wandb_entity wandb_run_group",
                "benchmarks are run on RUN_DIR/model by tools of their own": "benchmarks callbacks",
                "nothing is uploaded: `hf upload RUN_DIR/model` does it": "hub_model_revision push_to_hub_revision "
                "overwrite_hub_revision",
                "a plug-in that brings such a reward decides on it": "code_language code_eval_test_batch_size "
                "code_eval_scoring_mode",
                "several datasets are data.datasets, each with its ratio": "dataset_mixture",
            }
        ),
    },
)
"""Read in its main branch of April 2026. Its name and version in messages are TRL's, whose most options are."""
