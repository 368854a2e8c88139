accelerate launch --config_file accelerate_zero3.yaml --main_process_port 29511 train_grpo.py \
  --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name trl-lib/DeepMath-103K --output_dir output/zero3 \
  --use_vllm True --vllm_mode colocate --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.25 \
  --vllm_enable_sleep_mode True --reward_funcs accuracy_reward --per_device_train_batch_size 2 \
  --gradient_accumulation_steps 8 --num_generations 16 --loss_type dr_grpo --scale_rewards False --beta 0.001 \
  --use_bias_correction_kl False --mask_truncated_completions True --bf16 --save_strategy epoch --logging_steps 1
