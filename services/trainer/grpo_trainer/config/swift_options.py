"""ms-swift's options of `swift rlhf --rlhf_type grpo`, and those of earlier versions that are still in write-ups."""

from typing import Any

from .peer_options import (
    TRAINING_COMPUTED,
    TRAINING_NOT_HERE,
    TRAINING_NOT_NEEDED,
    TRAINING_SETTINGS,
    PeerOptions,
    by_option,
)

CHORD: dict[str, tuple[str, Any]] = {
    "chord_sft_dataset": ("chord.sft_dataset", []),
    "chord_sft_per_device_train_batch_size": ("chord.sft_batch_size", None),
    "chord_mu_peak": ("chord.mu_peak", None),
    "chord_mu_valley": ("chord.mu_valley", None),
    "chord_mu_warmup_steps": ("chord.mu_warmup_steps", None),
    "chord_mu_decay_steps": ("chord.mu_decay_steps", None),
    "chord_enable_phi_function": ("chord.enable_phi_function", False),
}
"""Demonstrations beside the samples."""
FROZEN: dict[str, tuple[str, Any]] = {
    "freeze_parameters": ("model.freeze_parameters_regex", []),
    "freeze_parameters_regex": ("model.freeze_parameters_regex", None),
    "freeze_parameters_ratio": ("model.freeze_parameters_regex", 0.0),
    "trainable_parameters": ("model.trainable_parameters_regex", []),
    "trainable_parameters_regex": ("model.trainable_parameters_regex", None),
}
"""Frozen parameters, and the exceptions."""

MS_SWIFT = PeerOptions(
    name="ms-swift",
    version="4.6.0",
    settings=TRAINING_SETTINGS
    | {
        "attn_impl": ("model.attn_implementation", None),
        "gradient_checkpointing": ("model.gradient_checkpointing", True),
        "sequence_parallel_size": ("deepspeed.sequence_parallel_size", 1),
        "dataset_shuffle": ("data.shuffle", True),
        "num_generations": ("rollout.num_generations", 8),
        "max_completion_length": ("rollout.max_completion_length", 512),
        "temperature": ("rollout.temperature", 0.9),
        "top_p": ("rollout.top_p", 1.0),
        "top_k": ("rollout.top_k", -1),
        "min_p": ("rollout.min_p", 0.0),
        "repetition_penalty": ("rollout.repetition_penalty", 1.0),
        "stop_words": ("rollout.stop", []),
        "structured_outputs_regex": ("rollout.structured_outputs_regex", None),
        "reward_weights": ("reward.reward_weights", None),
        "loss_type": ("algorithm.loss_type", None),
        "epsilon": ("algorithm.epsilon", 0.2),
        "epsilon_high": ("algorithm.epsilon_high", None),
        "importance_sampling_level": ("algorithm.importance_sampling_level", "token"),
        "delta": ("algorithm.delta", None),
        "beta": ("algorithm.beta", None),
        "num_iterations": ("algorithm.num_iterations", 1),
        "overlong_filter": ("algorithm.mask_truncated_completions", False),
        "top_entropy_quantile": ("algorithm.top_entropy_quantile", 1.0),
        "sync_ref_model": ("algorithm.sync_ref_model", False),
        "ref_model_mixup_alpha": ("algorithm.ref_model_mixup_alpha", 0.6),
        "dynamic_sample": ("algorithm.dynamic_sampling", False),
        "max_resample_times": ("algorithm.max_refills", 3),
        "async_generate": ("algorithm.max_staleness", False),
        "off_policy_sequence_mask_delta": ("algorithm.off_policy_mask_threshold", None),
        "lr_scheduler_type": ("optimizer.lr_scheduler_type", "cosine"),
        "warmup_ratio": ("optimizer.warmup_ratio", 0.0),
        "weight_decay": ("optimizer.weight_decay", 0.1),
        "adam_beta2": ("optimizer.adam_beta2", 0.95),
        "early_stop_interval": ("checkpoint.patience", None),
        "log_completions": ("logging.log_completions", False),
        "report_to": ("logging.report_to", ["tensorboard"]),
    },
    computed=TRAINING_COMPUTED
    | CHORD
    | FROZEN
    | {
        "rlhf_type": ("algorithm.loss_type", "dpo"),
        "output_dir": ("run_dir", None),
        "add_version": ("run_dir", True),
        "model": ("model.name_or_path", None),
        "torch_dtype": ("model.dtype", None),
        "bf16": ("model.dtype", None),
        "fp16": ("model.dtype", None),
        "eval_strategy": ("eval.eval_steps", None),
        "num_generations_eval": ("eval.num_generations_eval", None),
        "dataset": ("data.dataset", []),
        "val_dataset": ("data.eval_dataset", []),
        "split_dataset_ratio": ("data.eval_dataset", 0.0),
        "max_pixels": ("data.max_image_pixels", None),
        "freeze_vit": ("model.train_vision_tower", True),
        "freeze_aligner": ("model.train_vision_tower", True),
        "freeze_llm": ("model.freeze_parameters_regex", False),
        "columns": ("data.prompt_template", None),
        "use_chat_template": ("data.prompt_column", None),
        "system": ("data.system", None),
        "max_length": ("data.max_prompt_length", None),
        "truncation_strategy": ("data.overlong_prompts", None),
        "enable_thinking": ("data.chat_template_kwargs", None),
        "ref_model": ("model.name_or_path", None),
        "reward_funcs": ("reward.reward_funcs", []),
        "reward_model": ("reward.reward_funcs", None),
        "external_plugins": ("reward.reward_funcs", []),
        "cosine_min_len_value_wrong": ("reward.params", -0.5),
        "cosine_max_len_value_wrong": ("reward.params", 0.0),
        "cosine_min_len_value_correct": ("reward.params", 1.0),
        "cosine_max_len_value_correct": ("reward.params", 0.5),
        "cosine_max_len": ("reward.params", None),
        "repetition_n_grams": ("reward.params", 3),
        "repetition_max_penalty": ("reward.params", -1.0),
        "soft_max_length": ("reward.params", None),
        "soft_cache_length": ("reward.params", None),
        "advantage_estimator": ("algorithm.advantage_estimator", "grpo"),
        "scale_rewards": ("algorithm.scale_rewards", None),
        "kl_in_reward": ("algorithm.kl_in_reward", None),
        "ref_model_sync_steps": ("algorithm.ref_model_sync_steps", 512),
        "rollout_importance_sampling_mode": ("algorithm.importance_sampling_mode", None),
        "rollout_importance_sampling_threshold": ("algorithm.importance_sampling_clip_max", 2.0),
        "tau_pos": ("algorithm.params", 1.0),
        "tau_neg": ("algorithm.params", 1.05),
        "real_tau": ("algorithm.advantage_estimator_params", 0.5),
        "fipo_decay_rate": ("algorithm.params", 32.0),
        "fipo_clip_range": ("algorithm.params", 0.2),
        "fipo_clip_high_only": ("algorithm.params", True),
        "fipo_safety_threshold": ("algorithm.params", 4.0),
        "learning_rate": ("optimizer.learning_rate", None),
        "ddp_timeout": ("deepspeed.timeout_s", 18000000),
        "per_device_train_batch_size": ("rollout.generation_batch_size", 1),
        "gradient_accumulation_steps": ("rollout.generation_batch_size", None),
        "generation_batch_size": ("rollout.generation_batch_size", None),
        "steps_per_generation": ("algorithm.steps_per_generation", None),
        "multi_turn_scheduler": ("episodes.multi_turn_scheduler", None),
        "gym_env": ("episodes.environment", None),
        "use_gym_env": ("episodes.reward_weights", None),
        "max_turns": ("episodes.max_turns", None),
        "completion_length_limit_scope": ("episodes.max_turn_tokens", "per_round"),
        "use_vllm": ("rollout.urls", False),
        "vllm_mode": ("rollout.urls", None),
        "vllm_server_base_url": ("rollout.urls", None),
        "vllm_server_host": ("rollout.urls", None),
        "vllm_server_port": ("rollout.urls", [8000]),
        "vllm_data_parallel_size": ("rollout.urls", 1),
        "tuner_type": ("model.lora", "lora"),
        "lora_rank": ("model.lora.r", 8),
        "lora_alpha": ("model.lora.alpha", 32),
        "lora_dropout": ("model.lora.dropout", 0.05),
        "target_modules": ("model.lora.target_modules", ["all-linear"]),
        "target_regex": ("model.lora.target_modules", None),
        "target_parameters": ("model.lora.target_parameters", None),
        "use_rslora": ("model.lora.use_rslora", False),
        "lorap_lr_ratio": ("optimizer.loraplus_lr_ratio", None),
        "adapters": ("model.lora.adapter", []),
        "quant_method": ("model.load_in_4bit", None),
        "quant_bits": ("model.load_in_4bit", None),
        "teacher_model": ("teacher.url", None),
        "teacher_model_server": ("teacher.url", None),
        "teacher_kl_coef": ("teacher.coef", 1.0),
        "advantage_reweight": ("teacher.form", None),
        "rlsd_lambda": ("teacher.coef", 0.5),
        "rlsd_reweight_clip_range": ("teacher.reweight_clip", 0.2),
        "rlsd_negative_only": ("teacher.negative_only", False),
        "rlsd_lambda_warmup_steps": ("teacher.coef", 0),
        "rlsd_lambda_decay_steps": ("teacher.coef", 0),
        "sdar_loss_coef": ("teacher.form", 0.0),
        "sdar_gate_beta": ("teacher.gate_beta", 5.0),
        "project": ("logging.project", "huggingface"),
        "swanlab_project": ("logging.project", "ms-swift"),
        "vllm_device": ("rollout.urls", "auto"),  # of ms-swift 3
    },
    server_flags={
        "vllm_gpu_memory_utilization": ("--gpu-memory-utilization", 0.9),
        "vllm_max_model_len": ("--max-model-len", None),
        "vllm_tensor_parallel_size": ("--tensor-parallel-size", 1),
        "vllm_pipeline_parallel_size": ("--pipeline-parallel-size", 1),
        "vllm_enable_expert_parallel": ("--enable-expert-parallel", False),
        "vllm_max_num_seqs": ("--max-num-seqs", None),
        "vllm_disable_custom_all_reduce": ("--disable-custom-all-reduce", True),
        "vllm_enforce_eager": ("--enforce-eager", False),
        "vllm_enable_prefix_caching": ("--enable-prefix-caching", True),
        "vllm_disable_cascade_attn": ("--disable-cascade-attn", False),
        "vllm_speculative_config": ("--speculative-config", None),
        "vllm_reasoning_parser": ("--reasoning-parser", None),
        "vllm_limit_mm_per_prompt": ("--limit-mm-per-prompt", None),
    },
    not_needed=TRAINING_NOT_NEEDED
    | by_option(
        {
            "rollout.startup_timeout_s waits for the servers": "vllm_server_timeout",
            "the trainer names the port of the weights when it joins a server: weights.port": "vllm_server_group_port",
            "a push goes in buckets of weights.bucket_mib": "enable_flattened_weight_sync",
            "adapters are pushed as they are: --enable-lora and --max-lora-rank stand in the server's line": (
                "vllm_enable_lora vllm_max_lora_rank"
            ),
            "one process holds the engine": "vllm_use_async_engine",
            "a rollout server keeps no cache of images": "vllm_mm_processor_cache_gb",
            "rows are read once, before the first step": "dataset_num_proc load_from_cache_file streaming "
            "shuffle_buffer_size download_mode lazy_tokenize packing_num_proc strict val_dataset_shuffle "
            "train_dataloader_shuffle group_by_length padding_side",
            "the chat template is the model's own, as transformers reads it": "template_backend model_type "
            "model_name model_author agent_template",
            "GRPO trains on what was sampled, and on nothing else": "loss_scale is_binary_loss_scale "
            "disable_ignore_empty_think add_non_thinking_prefix acc_strategy use_logits_to_keep padding_free "
            "preserve_thinking",
            "metrics have the entropy and the mismatch of trainer and servers": "log_entropy "
            "log_rollout_offpolicy_metrics wandb_log_unique_prompts",
            "every column reaches the rewards": "vllm_server_pass_dataset disable_auto_column_mapping",
            "the Hub is Hugging Face's": "use_hf",
            "the reference is the model that the run starts from": "ref_model_type ref_model_revision",
            "checkpoints are in run_dir/checkpoints, the best one beside them": "create_checkpoint_symlink",
            "trackers are set up by their own variables": "swanlab_workspace swanlab_exp_name swanlab_mode "
            "swanlab_token swanlab_notification_method swanlab_webhook_url swanlab_secret swanlab_sender_email "
            "swanlab_receiver_email swanlab_smtp_server swanlab_smtp_port swanlab_email_language",
            "TensorBoard's files are in run_dir": "logging_dir",
            "checkpoints are safetensors": "safe_serialization max_shard_size",
            "arguments are not read from a checkpoint": "load_args load_data_args ignore_args_error check_model",
            "PEFT makes the adapter": "tuner_backend use_swift_lora",
            "NF4 is what the model is stored in": "bnb_4bit_compute_dtype bnb_4bit_quant_type "
            "bnb_4bit_use_double_quant bnb_4bit_quant_storage",
            "read by other algorithms than GRPO": "label_smoothing rpo_alpha ld_alpha discopop_tau loss_weights "
            "cpo_alpha simpo_gamma desirable_weight undesirable_weight center_rewards_coefficient sft_alpha lmbda "
            "seq_kd gkd_logits_topk num_ppo_epochs whiten_rewards kl_coef vf_coef cliprange cliprange_value gamma lam "
            "num_mini_batches local_rollout_forward_batch_size num_sample_generations missing_eos_penalty mrl_dims "
            "enable_dft_loss enable_channel_loss",
            "a language model is trained, which answers in text": "task_type num_labels problem_type",
            "the vision tower is frozen, as what joins it to the decoder": "vit_gradient_checkpointing vit_lr "
            "aligner_lr",
            "read by other adapters than LoRA": "fourier_n_frequency fourier_scaling boft_block_size boft_block_num "
            "boft_n_butterfly_factor boft_dropout vera_rank vera_projection_prng_key vera_dropout vera_d_initial "
            "adapter_act adapter_length adalora_target_r adalora_init_r adalora_tinit adalora_tfinal adalora_deltaT "
            "adalora_beta1 adalora_beta2 adalora_orth_reg_weight llamapro_num_new_blocks llamapro_num_groups "
            "reft_layer_key reft_layers reft_rank reft_intervention_type reft_args lora_ga_batch_size lora_ga_iters "
            "lora_ga_max_length lora_ga_direction lora_ga_scale lora_ga_stable_gamma",
            "sampling is the rollout server's": "num_beams stream logprobs top_logprobs predict_with_generate "
            "sortish_sampler generation_config generation_max_length generation_num_beams",
            "a patch for other hardware": "enable_npu_model_patch",
            "ms-swift reads it for other losses than GRPO's": "router_aux_loss_coef",
            "a run_dir that holds a run already is refused": "overwrite_output_dir",  # of ms-swift 2
        }
    ),
    not_here=TRAINING_NOT_HERE
    | by_option(
        {
            "the server keeps its memory while the trainer works: give each its part by --gpu-memory-utilization; "
            "deepspeed.offload_optimizer keeps the optimizer's state in CPU memory all the time": (
                "sleep_level offload_optimizer offload_model move_model_batches offload_teacher_model"
            ),
            "the chat template is the model's own, as transformers reads it; another one is model.chat_template": (
                "template"
            ),
            "a prompt ends as the chat template ends it: what an answer begins with stands in model.chat_template": (
                "response_prefix"
            ),
            "a reward model scores by its own logit": "reward_model_plugin reward_adapters reward_model_type "
            "reward_model_revision reward_template",
            "each dataset has its own teacher in data.datasets": "teacher_tag_key",
            "a teacher is a rollout server of its own: start one, and name it in teacher.url": (
                "teacher_adapters teacher_model_type teacher_model_revision teacher_deepspeed"
            ),
            "vLLM serves no adapters with biases or whole modules, and no DoRA": "modules_to_save lora_bias use_dora",
            "an adapter begins as zero, and has the model's dtype": "init_weights lora_dtype",
            "the reference of an adapter is the model without it: merge the first adapter into the model": (
                "ref_adapters"
            ),
            "the optimizer is that of optimizer.name; ZeRO gives it no whole matrices": "optimizer use_galore "
            "galore_target_modules galore_rank galore_update_proj_gap galore_scale galore_proj_type "
            "galore_optim_per_parameter galore_with_embedding galore_quantization galore_proj_quant galore_proj_bits "
            "galore_proj_group_size galore_cos_threshold galore_gamma_proj galore_queue_size lisa_activated_layers "
            "lisa_step_interval",
            "there is no padding to pack: deepspeed.share_prefixes computes each token once": "packing "
            "packing_length packing_strategy",
            "weights are spread by deepspeed.zero_stage alone": "zero_hpz_partition_size deepspeed_autotp_size",
            "boxes in an image are text, as the row has them": "norm_bbox",
            "num_train_epochs is the number of epochs": "max_epochs",
            "evaluation samples held-out rows, see the section eval": "eval_use_evalscope eval_dataset "
            "eval_dataset_args eval_limit eval_generation_config extra_eval_args eval_metric",
            "callbacks of your own are FILE.py:NAME in callbacks": "callbacks",
            "several datasets are data.datasets, each with its ratio": "interleave_prob stopping_strategy",
            "rows are read as they are, from a file or the Hub; a recipe of your own converts them": (
                "cached_dataset cached_val_dataset custom_dataset_info decision_drop_instructions "
                "decision_subsample_options decision_state_as_text decision_shuffle_fields"
            ),
            "a resumed run goes on with all of its state": "resume_only_model",
            "checkpoint.async_save writes beside the training": "use_flash_ckpt",
            "Ray spreads rewards alone": "use_ray ray_exp_name device_groups",
            "a model is loaded as its files say": "experts_impl new_special_tokens rope_scaling device_map max_memory "
            "max_model_len local_repo_path init_strategy model_kwargs hqq_axis",
            "any other flag of vLLM can be added to the server's line": "vllm_engine_kwargs vllm_quantization",
            # Of ms-swift 3:
            "another revision is a folder of its own: download it, and name the folder": "model_revision",
            "sampling is vLLM's alone": "use_lmdeploy lmdeploy_device lmdeploy_session_len "
            "lmdeploy_cache_max_entry_count",
            "the server and the trainer share no memory": "gc_collect_after_offload",
        }
    ),
    older={
        "train_type": "tuner_type",
        "sft_type": "tuner_type",
        "model_id_or_path": "model",
        "dtype": "torch_dtype",
        "max_new_tokens": "max_completion_length",
        "response_length": "max_completion_length",
        "custom_register_path": "external_plugins",
        "lora_target_modules": "target_modules",
        "lora_target_regex": "target_regex",
        "evaluation_strategy": "eval_strategy",
        "tensor_parallel_size": "vllm_tensor_parallel_size",
        "gpu_memory_utilization": "vllm_gpu_memory_utilization",
        "num_infer_workers": "vllm_data_parallel_size",
        "multi_turn_func": "multi_turn_scheduler",
    },
)
