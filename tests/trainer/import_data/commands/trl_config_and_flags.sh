trl grpo --config grpo_base.yaml --learning_rate 5e-7 --accelerate_config zero2 --num_processes 4 --max_steps 200 \
  --generation_batch_size 256 --num-iterations 2 --epsilon 0.1 --epsilon-high 0.3 --no_gradient_checkpointing
