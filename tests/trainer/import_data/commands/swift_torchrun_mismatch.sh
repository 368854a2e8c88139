torchrun --nproc_per_node=4 --master_port 29501 swift/cli/rlhf.py --rlhf_type=grpo --model=Qwen/Qwen2.5-3B-Instruct \
  --tuner_type full --dataset AI-MO/NuminaMath-TIR --use_vllm true --vllm_mode server \
  --vllm_server_base_url http://127.0.0.1:8100 --rollout_importance_sampling_mode sequence_mask \
  --rollout_importance_sampling_threshold 3 --off_policy_sequence_mask_delta 0.5 --log_rollout_offpolicy_metrics true \
  --top_k 50 --top_p 0.9 --min_p 0.05 --temperature 1 --reward_funcs accuracy cosine --cosine_min_len_value_wrong -1 \
  --generation_batch_size 64 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --num_generations 8 \
  --bf16 true --sync_ref_model true --ref_model_sync_steps 64 --ref_model_mixup_alpha 0.5 --fsdp fsdp2
