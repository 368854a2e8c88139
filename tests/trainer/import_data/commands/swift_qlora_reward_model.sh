CUDA_VISIBLE_DEVICES=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --quant_method bnb --quant_bits 4 \
  --bnb_4bit_quant_type nf4 --target_regex '.*\.(q_proj|k_proj)' --reward_model Skywork/Skywork-Reward-V2-Qwen3-0.6B \
  --reward_funcs format --reward_weights 0.1 1 --dataset rows/math.jsonl --deepspeed zero3 --use_vllm true \
  --vllm_mode colocate --vllm_max_lora_rank 8 --vllm_enable_lora true --vllm_gpu_memory_utilization 0.6 \
  --per_device_train_batch_size 8 --vllm_max_model_len 500 --max_completion_length 100 --vllm_max_num_seqs 64
