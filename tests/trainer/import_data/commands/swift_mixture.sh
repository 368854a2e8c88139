swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --train_type full \
  --dataset HF::AI-MO/NuminaMath-TIR#300 rows/math.jsonl#100 --interleave_prob 0.5 0.5 --split_dataset_ratio 0.01 \
  --scale_rewards gdpo --reward_funcs accuracy format --multi_turn_scheduler math_tip_trick --max_turns 2 \
  --per_device_train_batch_size 8 --num_generations 4 --freeze_vit true --max_pixels 1000 --advantage_estimator grpo \
  --teacher_kl_coef 0.5 --chord_mu_peak 0.5 --padding_free true --sequence_parallel_size 2 --truncation_strategy delete
