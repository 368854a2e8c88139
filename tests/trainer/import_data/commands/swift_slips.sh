#!/bin/bash
# What goes wrong when a command is copied: an unset variable, blanks behind a \, a lost \, and other commands around.
pip install ms-swift -U
export CUDA_VISIBLE_DEVICES=0,1
NNODES=2
NPROC_PER_NODE=$nproc_per_node \  
swift rlhf \
  --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct `# the policy` \
  --train_type full --dataset 'rows/math.jsonl' \  
  --columns '{"problem": "query"}' --reward_funcs accuracy format\
--per_device_train_batch_size 4 \
  --gradient_accumulation_steps 3 --steps_per_generation 2 --num_generations 4
  --deepspeed ds.json --gradient_clipping_mode auto --learning_rate 2e-6 --learning_rate 3e-6 > train.log 2>&1
tail -f train.log
