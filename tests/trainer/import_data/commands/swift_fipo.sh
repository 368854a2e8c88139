CUDA_VISIBLE_DEVICES=2 swift rollout --model Qwen/Qwen2.5-3B-Instruct &
NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct \
  --dataset AI-MO/NuminaMath-TIR --reward_funcs accuracy --tuner_type full --use_vllm true --vllm_mode server \
  --vllm_server_host 127.0.0.1 --vllm_server_port 8000 --per_device_train_batch_size 8 --num_generations 8 \
  --num_iterations 3 --beta 0 --temperature 1.0 --loss_type fipo --delta 10.0 --epsilon_high 0.28 --fipo_decay_rate 16 \
  --fipo_clip_range 0 --fipo_clip_high_only false --real_tau 0.5
