# Two rollout servers, sampling beside training, two passes over a batch of two updates.
export NCCL_DEBUG=WARN
export MODEL="Qwen/Qwen2.5-3B-Instruct"
CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model "${MODEL}" --train_type full \
  --dataset rows/math.jsonl --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 localhost \
  --vllm_server_port 8000 8001 --vllm_server_timeout 600 --async_generate true \
  --reward_funcs accuracy --num_generations 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
  --steps_per_generation 4 --num_iterations 2 --save_steps 100 --max_steps 1000 --warmup_steps 10 \
  --deepspeed ${ZERO:-zero2} --dataset_shuffle false --seed 7 --max_grad_norm 0.5 --delta 4.0 &
wait
