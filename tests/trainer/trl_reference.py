"""TRL's own GRPOTrainer on a tiny model, fed with completions and rewards that a test chooses.

Its real code computes advantages, old and reference logprobs, corrections, loss and gradient. Only sampling is
replaced, through TRL's `rollout_func`, and attributes that a configuration would set are set between calls.
"""

import copy
import math
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from tests.tiny_model import make_model, make_tokenizer
from transformers import PreTrainedModel

from grpo_trainer.config.algorithm import AlgorithmConfig

NUM_GENERATIONS = 4
MAX_COMPLETION_LENGTH = 12


@dataclass
class Completions:
    """One generation batch: prompts repeated NUM_GENERATIONS times, as TRL has them."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    logprobs: list[list[float]]
    rewards: list[float | None]


def import_trl() -> ModuleType:
    """Import TRL without vLLM. Not at the head of a file: it takes seconds, in every process that collects the tests.

    TRL would import vLLM, which takes longer, and warn that it does not know its version. Nothing here samples by it.
    """
    trl = import_module("trl")
    without_vllm = patch.object(import_module("trl.import_utils"), "is_vllm_available", lambda min_version=None: False)
    with without_vllm, patch.dict(os.environ, {"TRL_EXPERIMENTAL_SILENCE": "1"}):
        import_module("trl.experimental.gmpo")
        import_module("trl.trainer.rloo_trainer")
    return trl


class TrlReference:
    """A trainer whose policy, old policy and reference are three different models."""

    def __init__(self, folder: Path, *, temperature: float, seed: int = 0):
        self.next_batch: Completions | None = None
        trl = import_trl()
        self._losses = {"gmpo": trl.experimental.gmpo.GMPOTrainer._compute_loss}
        config = trl.GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=NUM_GENERATIONS,
            num_generations=NUM_GENERATIONS,
            max_completion_length=MAX_COMPLETION_LENGTH,
            temperature=temperature,
            beta=0.1,  # makes TRL keep a reference model; tests set `beta` afterwards
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
        )
        tokenizer = make_tokenizer()
        make_model(tied=True, hidden_size=64, seed=seed).save_pretrained(folder / "model")
        self.trainer = trl.GRPOTrainer(
            model=str(folder / "model"),
            reward_funcs=self._rewards,
            args=config,
            train_dataset=import_module("datasets").Dataset.from_list([{"prompt": "a"}]),
            processing_class=tokenizer,
            rollout_func=self._rollout,
        )
        # In float64, so that what is compared is the loss: the layers' own rounding, which differs from processor to
        # processor, comes close to the bound in float32.
        for model in (self.trainer.model, self.trainer.ref_model):
            model.double()
        self.trainer.model.train()
        of_one_loss = [name for name in vars(config) if name.startswith(("sapo_", "vespo_"))]
        self._own_parameters = {name: getattr(config, name) for name in of_one_loss}
        self.trainer.current_gradient_accumulation_steps = 1
        # The policy has moved away from the reference, and moves away from the old policy between score and loss.
        self.reference = self.trainer.ref_model
        perturb(self.model, seed=seed + 1, scale=0.02)

    @property
    def model(self) -> PreTrainedModel:
        return self.trainer.model

    def configure(self, algorithm: AlgorithmConfig) -> None:
        """Set what `algorithm` says. `loss_type` is ours; TRL has GSPO and decoupled ratios as settings of others."""
        trainer = self.trainer
        trainer.loss_type = {"gspo": "grpo"}.get(algorithm.loss_type, algorithm.loss_type)
        trainer.importance_sampling_level = algorithm.importance_sampling_level
        trainer.scale_rewards, trainer.beta = algorithm.scale_rewards or "group", algorithm.beta
        trainer.epsilon_low, trainer.epsilon_high = algorithm.epsilon, algorithm.upper_epsilon
        trainer.args.delta, trainer.num_iterations = algorithm.delta, algorithm.num_iterations
        trainer.entropy_coef, trainer._entropy_bonus_enabled = algorithm.entropy_coef, algorithm.has_entropy_bonus
        trainer.use_adaptive_entropy = algorithm.use_adaptive_entropy
        for name in ("entropy_target", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"):
            setattr(trainer.args, name, getattr(algorithm, name))
        trainer._last_world_entropy = math.inf
        trainer.args.steps_per_generation = algorithm.steps_per_generation
        trainer.args.gradient_accumulation_steps = 1
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = algorithm.importance_sampling_correction
        trainer._last_loaded_step = trainer.state.global_step
        trainer.vllm_importance_sampling_mode = algorithm.importance_sampling_mode
        trainer.vllm_importance_sampling_clip_min = algorithm.importance_sampling_clip_min
        trainer.vllm_importance_sampling_clip_max = algorithm.importance_sampling_clip_max
        trainer.args.use_bias_correction_kl = algorithm.kl_estimator == "unbiased"
        trainer.off_policy_mask_threshold = algorithm.off_policy_mask_threshold
        trainer.top_entropy_quantile = algorithm.top_entropy_quantile
        trainer.mask_truncated_completions = algorithm.mask_truncated_completions
        for name, value in (self._own_parameters | algorithm.params).items():
            setattr(trainer.args, name, value)

    def score(self, batch: Completions) -> dict[str, Any]:
        """TRL's tensors for `batch` under the weights as they are now; its metrics start anew."""
        self.next_batch = batch
        self.trainer._metrics["train"].clear()
        return self.trainer._generate_and_score_completions([{"prompt": "a"}] * len(batch.prompt_ids))

    def loss_and_gradient(self, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
        self.model.zero_grad()
        compute = self._losses.get(self.trainer.loss_type, type(self.trainer)._compute_loss)
        loss = compute(self.trainer, self.model, inputs)
        loss.backward()
        gradient = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        return loss.item(), gradient

    def metrics(self) -> dict[str, float]:
        return {name: values[-1] for name, values in self.trainer._metrics["train"].items()}

    def copy_of_model(self) -> PreTrainedModel:
        """The policy as it is, with transformers' own forward."""
        fresh = make_model(tied=True, hidden_size=64).double()
        fresh.load_state_dict(copy.deepcopy(self.model.state_dict()))
        return fresh

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch = self._batch()
        return {
            "prompt_ids": batch.prompt_ids,
            "completion_ids": batch.completion_ids,
            "logprobs": batch.logprobs if trainer.use_vllm else None,
        }

    def _rewards(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
        return self._batch().rewards

    def _batch(self) -> Completions:
        assert self.next_batch is not None
        return self.next_batch


def perturb(model: PreTrainedModel, *, seed: int, scale: float) -> None:
    """Move every weight a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale * parameter.std())
