trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset_name trl-lib/DeepMath-103K --loss_type vespo \
  --vespo_k_pos 1.5 --vespo_lambda_pos 2.5 --sapo_temperature_pos 1.1 --reward_funcs accuracy_reward \
  --vllm_importance_sampling_mode token_mask --vllm_importance_sampling_clip_min 0.5 \
  --vllm_importance_sampling_cap 5.0 --off_policy_mask_threshold 0.2 --optim adamw_8bit --lr_scheduler_type polynomial
