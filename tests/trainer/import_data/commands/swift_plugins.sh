CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=3 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct \
  --external_plugins examples/train/grpo/plugin/plugin.py plugins/length.py --train_type full --use_vllm true \
  --vllm_device cuda:3 --reward_funcs external_countdown toolbench short react_format repetition \
  --reward_weights 1 1 0.5 0.25 0.1 --repetition_n_grams 4 --repetition_max_penalty -0.5 --cosine_max_len 1000 \
  --dataset zouxuhong/Countdown-Tasks-3to4#1000 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
  --num_generations 6 --deepspeed zero1 --ds3_gather_for_generation false --vllm_enforce_eager true \
  --vllm_enable_prefix_caching false --log_completions true --wandb_log_unique_prompts true
