trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset_name trl-lib/DeepMath-103K \
  --dataset_train_split train --dataset_test_split test --eval_strategy steps --eval_steps 50 --eval_on_start \
  --num_generations_eval 2 --per_device_eval_batch_size 16 --metric_for_best_model eval_reward \
  --load_best_model_at_end --greater_is_better true --save_steps 50 --save_total_limit 1 --num_train_epochs 2 \
  --reward_funcs accuracy_reward --seed 3 --data_seed 4 --warmup_steps 0.1 --max_grad_norm 0
