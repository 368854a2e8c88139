"""TRL's options: those of `trl grpo`, which are its GRPOConfig, ModelConfig and the arguments of its script."""

from .peer_options import (
    TRAINING_COMPUTED,
    TRAINING_NOT_HERE,
    TRAINING_NOT_NEEDED,
    TRAINING_SETTINGS,
    PeerOptions,
    by_option,
)

TRL = PeerOptions(
    name="TRL",
    version="1.16.0",
    settings=TRAINING_SETTINGS
    | {
        "attn_implementation": ("model.attn_implementation", None),
        "trust_remote_code": ("model.trust_remote_code", False),
        "gradient_checkpointing": ("model.gradient_checkpointing", True),
        "cast_lm_head_to_fp32": ("model.head_dtype", False),
        "dataset_train_split": ("data.split", "train"),
        "chat_template_kwargs": ("data.chat_template_kwargs", None),
        "shuffle_dataset": ("data.shuffle", True),
        "num_generations": ("rollout.num_generations", 8),
        "max_completion_length": ("rollout.max_completion_length", 512),
        "temperature": ("rollout.temperature", 1.0),
        "top_p": ("rollout.top_p", 1.0),
        "top_k": ("rollout.top_k", 0),
        "min_p": ("rollout.min_p", None),
        "repetition_penalty": ("rollout.repetition_penalty", 1.0),
        "reward_weights": ("reward.reward_weights", None),
        "loss_type": ("algorithm.loss_type", "dapo"),
        "scale_rewards": ("algorithm.scale_rewards", "group"),
        "epsilon": ("algorithm.epsilon", 0.2),
        "epsilon_high": ("algorithm.epsilon_high", None),
        "importance_sampling_level": ("algorithm.importance_sampling_level", "token"),
        "delta": ("algorithm.delta", None),
        "beta": ("algorithm.beta", 0.0),
        "use_bias_correction_kl": ("algorithm.kl_estimator", True),
        "num_iterations": ("algorithm.num_iterations", 1),
        "mask_truncated_completions": ("algorithm.mask_truncated_completions", False),
        "top_entropy_quantile": ("algorithm.top_entropy_quantile", 1.0),
        "entropy_coef": ("algorithm.entropy_coef", 0.0),
        "use_adaptive_entropy": ("algorithm.use_adaptive_entropy", False),
        "entropy_target": ("algorithm.entropy_target", 0.2),
        "entropy_coef_min": ("algorithm.entropy_coef_min", 0.0),
        "entropy_coef_max": ("algorithm.entropy_coef_max", 1.0),
        "entropy_coef_delta": ("algorithm.entropy_coef_delta", 0.005),
        "router_aux_loss_coef": ("algorithm.router_aux_loss_coef", None),
        "sync_ref_model": ("algorithm.sync_ref_model", False),
        "ref_model_mixup_alpha": ("algorithm.ref_model_mixup_alpha", 0.6),
        "vllm_importance_sampling_correction": ("algorithm.importance_sampling_correction", True),
        "vllm_importance_sampling_mode": ("algorithm.importance_sampling_mode", "sequence_mask"),
        "vllm_importance_sampling_clip_max": ("algorithm.importance_sampling_clip_max", 3.0),
        "vllm_importance_sampling_clip_min": ("algorithm.importance_sampling_clip_min", None),
        "off_policy_mask_threshold": ("algorithm.off_policy_mask_threshold", None),
        "learning_rate": ("optimizer.learning_rate", 1e-6),
        "lr_scheduler_type": ("optimizer.lr_scheduler_type", "linear"),
        "warmup_ratio": ("optimizer.warmup_ratio", 0.0),  # of transformers 4
        "weight_decay": ("optimizer.weight_decay", 0.0),
        "adam_beta2": ("optimizer.adam_beta2", 0.999),
        "ddp_timeout": ("deepspeed.timeout_s", 1800),
        "log_completions": ("logging.log_completions", False),
        "report_to": ("logging.report_to", "none"),
        "project": ("logging.project", "huggingface"),
    },
    computed=TRAINING_COMPUTED
    | {
        "output_dir": ("run_dir", None),
        "model_name_or_path": ("model.name_or_path", None),
        "eval_strategy": ("eval.eval_steps", "no"),
        "num_generations_eval": ("eval.num_generations_eval", None),
        "dtype": ("model.dtype", "float32"),
        "bf16": ("model.dtype", None),
        "fp16": ("model.dtype", False),
        "dataset_name": ("data.dataset", None),
        "dataset_config": ("data.dataset", None),
        "dataset_test_split": ("data.eval_split", "test"),
        "reward_funcs": ("reward.reward_funcs", None),
        "reward_model_name_or_path": ("reward.reward_funcs", None),
        "multi_objective_aggregation": ("algorithm.advantage_estimator", "sum_then_normalize"),
        "ref_model_sync_steps": ("algorithm.ref_model_sync_steps", 512),
        "sapo_temperature_neg": ("algorithm.params", 1.05),
        "sapo_temperature_pos": ("algorithm.params", 1.0),
        "vespo_k_pos": ("algorithm.params", 2.0),
        "vespo_lambda_pos": ("algorithm.params", 3.0),
        "vespo_k_neg": ("algorithm.params", 3.0),
        "vespo_lambda_neg": ("algorithm.params", 2.0),
        "per_device_train_batch_size": ("rollout.generation_batch_size", 8),
        "gradient_accumulation_steps": ("rollout.generation_batch_size", 1),
        "generation_batch_size": ("rollout.generation_batch_size", None),
        "steps_per_generation": ("algorithm.steps_per_generation", None),
        "use_vllm": ("rollout.urls", False),
        "vllm_mode": ("rollout.urls", "colocate"),
        "vllm_server_base_url": ("rollout.urls", None),
        "vllm_server_host": ("rollout.urls", "0.0.0.0"),  # noqa: S104 (TRL's)
        "vllm_server_port": ("rollout.urls", 8000),
        "use_peft": ("model.lora", False),
        "lora_r": ("model.lora.r", 16),
        "lora_alpha": ("model.lora.alpha", 32),
        "lora_dropout": ("model.lora.dropout", 0.05),
        "lora_target_modules": ("model.lora.target_modules", None),
        "lora_target_parameters": ("model.lora.target_parameters", None),
        "use_rslora": ("model.lora.use_rslora", False),
        "load_in_4bit": ("model.load_in_4bit", False),
        "vllm_device": ("rollout.urls", "auto"),  # of earlier versions
        "max_prompt_length": ("data.max_prompt_length", None),  # of earlier versions
    },
    server_flags={
        "vllm_gpu_memory_utilization": ("--gpu-memory-utilization", 0.3),
        "vllm_max_model_length": ("--max-model-len", None),
        "vllm_tensor_parallel_size": ("--tensor-parallel-size", 1),
        "vllm_model_impl": ("--model-impl", "vllm"),
    },
    not_needed=TRAINING_NOT_NEEDED
    | by_option(
        {
            "rollout.startup_timeout_s waits for the servers": "vllm_server_timeout",
            "the trainer names the port of the weights when it joins a server: weights.port": "vllm_group_port",
            "packing and padding are counted in tokens": "pad_to_multiple_of",
            "sampling is always vLLM's": "use_transformers_paged use_transformers_continuous_batching "
            "transformers_continuous_batching_config cache_implementation",
            "completions.jsonl has every completion": "num_completions_to_print log_unique_prompts log_multimodal",
            "adapters are those of a causal language model": "lora_task_type",
            "there are no buffers that ranks compare": "ignore_bias_buffers",
            "NF4 is what the model is stored in": "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage",
            "rows are read once, whole": "dataset_streaming streaming dataset_num_proc group_by_length",
            # Of earlier versions:
            "a run_dir that holds a run already is refused": "overwrite_output_dir",
            "TensorBoard's files are in run_dir": "logging_dir",
            "the loss is computed by our own chunked head": "use_liger_loss",
            "flags of vLLM can be added to the server's line": "vllm_dtype vllm_enable_prefix_caching",
        }
    ),
    not_here=TRAINING_NOT_HERE
    | by_option(
        {
            "the server keeps its memory while the trainer works: give each its part by --gpu-memory-utilization": (
                "vllm_enable_sleep_mode"
            ),
            "completions are free text; a reward such as `regex` or `format` asks for a form": (
                "vllm_structured_outputs_regex"
            ),
            "settings of sampling are rollout.temperature, top_p, top_k, min_p, repetition_penalty and stop": (
                "generation_kwargs"
            ),
            "a model is loaded by model.name_or_path, dtype and attn_implementation": "model_init_kwargs",
            "another revision is a folder of its own: download it, and name the folder": "model_revision",
            "dropout is active in the adapter alone (model.lora.dropout)": "disable_dropout",
            "rounds of tool calls are episodes, with tools or an environment": "max_tool_calling_iterations",
            "nothing is uploaded; completions.jsonl is in run_dir": "log_completions_hub_repo",
            "vLLM serves no DoRA adapters: a plain adapter is trained": "use_dora",
            "vLLM serves no adapters with whole modules": "lora_modules_to_save",
            "the quantized format is NF4, model.load_in_4bit": "load_in_8bit",
            "held-out rows are a dataset or a split of their own: data.eval_dataset": "test_split_size",
            "several datasets are data.datasets, each with its ratio": "datasets",
        }
    ),
    older={
        "torch_dtype": "dtype",
        "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
        "vllm_max_model_len": "vllm_max_model_length",
        "evaluation_strategy": "eval_strategy",
        "wandb_project": "project",
    },
)
