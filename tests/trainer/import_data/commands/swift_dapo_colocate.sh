# DAPO on eight GPUs that train and sample.
NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
swift rlhf --rlhf_type grpo \
  --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --torch_dtype bfloat16 --attn_impl sdpa \
  --dataset open-r1/DAPO-Math-17k-Processed --load_from_cache_file true \
  --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --vllm_tensor_parallel_size 2 \
  --sleep_level 1 --offload_model true --offload_optimizer true --move_model_batches 16 \
  --reward_funcs accuracy soft_overlong --reward_weights 1.0 0.5 --soft_cache_length 819 --soft_max_length 4096 \
  --dynamic_sample true --max_resample_times 5 --overlong_filter true \
  --epsilon 0.2 --epsilon_high 0.28 --loss_type bnpo --beta 0 --num_generations 16 --max_completion_length 4096 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --learning_rate 1e-6 --warmup_ratio 0.03 \
  --deepspeed zero3_offload --num_train_epochs 1 --save_steps 20 --logging_steps 1 --log_entropy true \
  --output_dir output/DAPO
