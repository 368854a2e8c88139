CUDA_VISIBLE_DEVICES=1 trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset_name rows/prompts.jsonl \
  --use_peft --lora_r 32 --lora_alpha 16 --lora_dropout 0.0 --lora_target_modules q_proj k_proj v_proj o_proj \
  --lora_task_type CAUSAL_LM --reward_funcs rewards.own.short --use_vllm --vllm_max_model_length 512 \
  --max_completion_length 128 --per_device_train_batch_size 16 --temperature 0.7 --top_k 20 --learning_rate 1e-5
