SWANLAB_API_KEY=not-to-be-shown NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct \
  --train_type full --loss_type sapo --tau_pos 1.2 --tau_neg 1.3 --fipo_decay_rate 16 --dataset AI-MO/NuminaMath-TIR \
  --reward_funcs format --report_to swanlab wandb --swanlab_project numina --swanlab_token not-to-be-shown \
  --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{"min_lr": 1e-7}' --warmup_steps 20 --weight_decay 0 \
  --adam_beta1 0.8 --adam_beta2 0.99 --adam_epsilon 1e-6 --per_device_train_batch_size 8 --num_generations 8 \
  --packing false --use_liger_kernel true --kl_in_reward true --beta 0.01 --save_total_limit 3 --run_name first
