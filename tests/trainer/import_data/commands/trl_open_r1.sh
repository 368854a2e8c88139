ACCELERATE_LOG_LEVEL=info accelerate launch --num_processes=7 --num_machines 1 --use_deepspeed --zero_stage 3 \
  src/open_r1/grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name AI-MO/NuminaMath-TIR \
  --dataset_prompt_column problem --system_prompt 'Think, then answer.' --max_prompt_length 400 \
  --max_completion_length 1024 --reward_funcs accuracy --per_device_train_batch_size 16 --num_generations 14 \
  --use_vllm true --vllm_device auto --vllm_gpu_memory_utilization 0.7 --warmup_ratio 0.1 --cosine_max_len 1000 \
  --hub_token not-to-be-shown --lr_scheduler_type cosine_with_min_lr --torch_dtype bfloat16
