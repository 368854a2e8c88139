ACCELERATE_LOG_LEVEL=info accelerate launch --num_processes=7 --num_machines 1 --use_deepspeed --zero_stage 3 \
  src/open_r1/grpo.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name AI-MO/NuminaMath-TIR \
  --dataset_prompt_column problem --system_prompt 'Think, then answer.' --max_prompt_length 400 \
  --chat_template "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<think>" \
  --max_completion_length 1024 --reward_funcs accuracy format tag_count cosine repetition_penalty length \
  --cosine_max_len 4000 --cosine_min_value_wrong -0.2 --repetition_max_penalty -0.5 --soft_punish_cache 100 \
  --per_device_train_batch_size 16 --num_generations 14 --use_vllm true --vllm_device auto \
  --vllm_gpu_memory_utilization 0.7 --warmup_ratio 0.1 --hub_token not-to-be-shown --torch_dtype bfloat16 \
  --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{"min_lr_rate": 0.1}' --benchmarks lcb_v4
