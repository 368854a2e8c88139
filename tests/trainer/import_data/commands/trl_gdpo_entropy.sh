trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dataset_name trl-lib/DeepMath-103K \
  --reward_funcs accuracy_reward think_format_reward --multi_objective_aggregation normalize_then_sum \
  --router_aux_loss_coef 0 --use_adaptive_entropy --entropy_target 0.3 --entropy_coef 0.01 --entropy_coef_delta 0.001 --entropy_coef_max 0.1 \
  --delta 3.0 --top_entropy_quantile 0.5 --importance_sampling_level sequence --loss_type grpo \
  --chat_template_kwargs '{"enable_thinking": false}' --attn_implementation kernels-community/flash-attn2
