swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --train_type full --dataset AI-MO/NuminaMath-TIR#2000 \
  --importance_sampling_level sequence --epsilon 3e-4 --epsilon_high 4e-4 --beta 0 --use_vllm true --vllm_mode colocate \
  --reward_funcs accuracy format --steps_per_generation 4 --per_device_train_batch_size 8 \
  --gradient_accumulation_steps 1 --num_generations 8 --top_entropy_quantile 0.2 --stop_words '</answer>' 'Question:' \
  --repetition_penalty 1.0 --report_to none --save_strategy no --gradient_checkpointing false --model_revision main
