"""The settings under which loss, gradient and metrics are compared with TRL's."""

CASES = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "kl to the reference": {"loss_type": "grpo", "beta": 0.3},
    "later pass": {"loss_type": "grpo", "num_iterations": 2},
    "later pass, clip higher and delta": {
        "loss_type": "bnpo", "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.15, "delta": 1.2,
    },
    "later pass with kl": {"loss_type": "dapo", "num_iterations": 2, "beta": 0.2, "scale_rewards": "batch"},
    "later pass with k3": {"loss_type": "grpo", "num_iterations": 2, "beta": 0.2, "kl_estimator": "k3"},
    "entropy bonus": {"loss_type": "dapo", "entropy_coef": 0.05},
    "token_truncate": {"loss_type": "dapo", "correction": "token_truncate"},
    "token_mask": {"loss_type": "grpo", "correction": "token_mask", "correction_limit": 1.5},
    "sequence_truncate": {"loss_type": "dr_grpo", "correction": "sequence_truncate", "num_iterations": 2},
    "sequence_mask": {"loss_type": "bnpo", "correction": "sequence_mask", "beta": 0.1},
    "token_mask on both sides": {
        "loss_type": "dapo", "correction": "token_mask", "correction_minimum": 0.5, "correction_limit": 5.0,
    },
    "gspo": {"loss_type": "gspo", "num_iterations": 2},
    "gspo, corrected": {"loss_type": "gspo", "correction": "token_truncate", "epsilon": 0.01},
    "sequence ratios with clip higher and delta": {
        "loss_type": "dr_grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.01,
        "epsilon_high": 0.02, "delta": 1.05,
    },
    "luspo": {"loss_type": "luspo", "num_iterations": 2, "epsilon": 0.01},
    "cispo": {"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 1.05},
    "cispo, corrected": {"loss_type": "cispo", "correction": "token_truncate"},
    "sapo": {"loss_type": "sapo", "num_iterations": 2},
    "sapo of whole sequences": {"loss_type": "sapo", "num_iterations": 2, "importance_sampling_level": "sequence"},
    "sapo with parameters": {
        "loss_type": "sapo", "num_iterations": 2, "params": {"sapo_temperature_pos": 0.6, "sapo_temperature_neg": 1.7},
    },
    "gmpo": {"loss_type": "gmpo", "num_iterations": 2, "epsilon": 0.05},
    "vespo": {"loss_type": "vespo", "num_iterations": 2},
    "vespo, corrected": {"loss_type": "vespo", "num_iterations": 2, "correction": "token_truncate"},
    "vespo with parameters": {
        "loss_type": "vespo", "num_iterations": 2,
        "params": {"vespo_k_pos": 1.5, "vespo_lambda_pos": 2.0, "vespo_k_neg": 2.5, "vespo_lambda_neg": 3.5},
    },
    "entropy mask": {"loss_type": "grpo", "top_entropy_quantile": 0.2},
    "entropy mask that keeps one token": {"loss_type": "bnpo", "top_entropy_quantile": 0.0},
    "entropy mask with kl, bonus and correction": {
        "loss_type": "dapo", "top_entropy_quantile": 0.35, "beta": 0.2, "entropy_coef": 0.05,
        "correction": "token_truncate",
    },
    "entropy mask, gspo": {"loss_type": "gspo", "top_entropy_quantile": 0.5},
    "entropy mask, cispo": {"loss_type": "cispo", "top_entropy_quantile": 0.5},
    "entropy mask, gmpo": {"loss_type": "gmpo", "top_entropy_quantile": 0.3},
    "off-policy mask": {
        "loss_type": "grpo", "correction": "token_truncate", "num_iterations": 2, "off_policy_mask_threshold": 0.05,
    },
}  # fmt: skip
