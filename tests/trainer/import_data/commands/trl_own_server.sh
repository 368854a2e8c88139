CUDA_VISIBLE_DEVICES=2,3 trl vllm-serve --model Qwen/Qwen2.5-3B-Instruct --tensor-parallel-size 2 --max_model_len 1024 &
CUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc-per-node 2 train.py --model_name_or_path \
  Qwen/Qwen2.5-3B-Instruct --dataset_name trl-lib/DeepMath-103K --dtype float32 --bf16 false --use_vllm \
  --vllm_mode server --reward_funcs accuracy_reward --reward_model_name_or_path Skywork/Skywork-Reward \
  --use_transformers_paged --entropy_target 0.4 --num_completions_to_print 2 --deepspeed ds.json
