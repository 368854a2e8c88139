NPROC_PER_NODE=1 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --advantage_estimator rloo --beta 0.02 \
  --dataset rows/questions.jsonl --val_dataset rows/held_out.jsonl --eval_steps 20 --num_generations_eval 2 \
  --system 'You solve problems.\nAnswer in one line.' --enable_thinking false --reward_funcs accuracy \
  --metric_for_best_model reward --load_best_model_at_end true --greater_is_better true --early_stop_interval 3 \
  --per_device_train_batch_size 8 --num_generations 8 --use_vllm true --vllm_mode colocate --eval_strategy steps \
  --lora_rank 16 --lora_alpha 64 --lora_dropout 0 --target_modules q_proj v_proj --use_rslora true --max_length 400
