trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset_name trl-lib/DeepMath-103K --beta 0.05 \
  --sync_ref_model --ref_model_mixup_alpha 0.9 --ref_model_sync_steps 64 --gradient_accumulation_steps 2 \
  --steps_per_generation 8 --reward_funcs get_soft_overlong_punishment reasoning_accuracy_reward \
  --disable_dropout --cast_lm_head_to_fp32 --fsdp "full_shard auto_wrap" --torch_compile false --push_to_hub true
