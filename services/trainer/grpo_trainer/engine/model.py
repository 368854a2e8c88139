"""Load a policy: a Hugging Face causal language model, in the dtype of training and push."""

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import WeightConverter
from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

from ..config.run_config import ModelConfig
from ..errors import UsageError, model_error_class
from .output_head import Policy


def load_policy(config: ModelConfig, *, temperature: float, zero3: dict[str, Any] | None) -> Policy:
    """Load the model of `config`, without dropout: the same tokens always have the same logprobs.

    `zero3`: the DeepSpeed configuration when parameters are sharded; every rank then loads its share only, and no rank
    ever holds the whole model. Raises UsageError or UnavailableError when the model cannot be loaded, and UsageError
    when it cannot be trained here.
    """
    sharded = HfDeepSpeedConfig(zero3) if zero3 is not None else None
    try:
        model = AutoModelForCausalLM.from_pretrained(
            config.name_or_path,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attn_implementation,
            trust_remote_code=config.trust_remote_code,
        )
    except (OSError, ValueError, ImportError) as error:
        raise model_error_class(config.name_or_path, error)(
            f"the model {config.name_or_path} cannot be loaded: {error}",
            hint="model.name_or_path is a Hugging Face name or a folder with config.json and safetensors",
        ) from error
    finally:
        if sharded is not None:
            # transformers keeps a weak reference to the setting, and would shard every later model as well.
            unset_hf_deepspeed_config()
    if any(isinstance(change, WeightConverter) for change in getattr(model, "_weight_conversions", None) or []):
        # transformers fuses some tensors while loading (experts, above all); servers load the original tensors.
        raise UsageError(
            f"{config.name_or_path} ({model.config.model_type}) has other parameters in memory than in its checkpoint; "
            "a rollout server cannot load them",
            hint="use a dense model",
        )
    switch_dropout_off(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model, temperature=temperature, chunk_tokens=config.logprob_chunk_tokens)


def switch_dropout_off(model: nn.Module) -> None:
    """Set dropout to 0 everywhere. The model stays in training mode, which gradient checkpointing requires."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
