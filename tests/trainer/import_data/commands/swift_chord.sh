CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct \
  --train_type full --dataset AI-MO/NuminaMath-TIR --reward_funcs accuracy --use_vllm true --vllm_mode colocate \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --num_generations 8 --max_completion_length 4096 \
  --chord_sft_dataset rows/talks.jsonl --chord_sft_per_device_train_batch_size 1 --chord_mu_warmup_steps 0 \
  --chord_mu_decay_steps 200 --chord_mu_peak 0.9 --chord_mu_valley 0.05 --chord_enable_phi_function false
