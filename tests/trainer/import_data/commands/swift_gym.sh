# An environment that the server plays with, and a reward of its format beside it.
CUDA_VISIBLE_DEVICES=1 swift rollout --model Qwen/Qwen2.5-3B-Instruct --vllm_use_async_engine true --use_gym_env true \
  --external_plugins plugins/lake.py --multi_turn_scheduler gym_scheduler --gym_env frozen_lake --max_turns 10 &
CUDA_VISIBLE_DEVICES=0 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --tuner_type full \
  --dataset rows/math.jsonl --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000 \
  --vllm_server_pass_dataset true --use_gym_env true --reward_funcs format --reward_weights 0.2 1.0 \
  --max_completion_length 64 --num_generations 4 --per_device_train_batch_size 4 --overlong_filter true --beta 0
