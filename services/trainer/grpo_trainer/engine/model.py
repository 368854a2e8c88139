"""Load a policy: a Hugging Face causal language model, in the dtype of training and push; what of it is pushed."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_proto.checkpoint_files import checkpoint_folder, read_headers
from grpo_proto.checkpoint_layout import LayoutError, Piece, checkpoint_layout

from ..config.model import ModelConfig
from ..errors import UsageError, model_error_class
from ..model_class import auto_class_of
from .family import image_token_of
from .policy import Policy
from .sequence_parallel import SequenceGroup
from .trained_parameters import text_parameters

log = logging.getLogger(__name__)

TRIED_FAMILIES = (
    "qwen2", "qwen3", "llama", "mistral", "phi3", "gemma2", "gemma3_text", "olmo2", "granite", "smollm3", "glm4",
    "gemma3", "qwen3_moe", "mixtral", "gpt_oss", "qwen3_next", "qwen3_5_text",
)  # fmt: skip
"""Model types whose row in docs/model-families.md says that a push leaves them equal."""
SEEN_FAMILIES = ("idefics3", "qwen2_5_vl", "qwen3_vl")
"""Those whose row there says so of prompts with images."""


def load_policy(
    config: ModelConfig, *, temperature: float, zero3: dict[str, Any] | None, group: SequenceGroup | None = None
) -> Policy:
    """Load the model of `config` in evaluation mode, without dropout: the same tokens have the same logprobs.

    `zero3`: the DeepSpeed configuration when parameters are sharded; every rank then loads its share only, and no rank
    ever holds the whole model. `group`: the ranks that compute a row together.

    Raises UsageError or UnavailableError when the model cannot be loaded, and UsageError when it cannot be trained
    here.
    """
    sharded = HfDeepSpeedConfig(zero3) if zero3 is not None else None
    try:
        family = AutoConfig.from_pretrained(config.name_or_path, trust_remote_code=config.trust_remote_code)
        check_family(family, config.name_or_path)
        model = auto_class_of(family).from_pretrained(
            config.name_or_path,
            dtype=getattr(torch, config.dtype),
            attn_implementation=attention_for(family, config.attn_implementation),
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
    freeze_tower(model, config)
    if config.gradient_checkpointing:
        recompute_activations(model)
    return Policy(
        model,
        temperature=temperature,
        chunk_tokens=config.logprob_chunk_tokens,
        in_float32=config.head_dtype == "float32",
        group=group,
    )


def check_family(family: PretrainedConfig, name_or_path: str) -> None:
    """Warn of a family that no push has been tried with. Raises UsageError for quantized weights."""
    quantization = getattr(family, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        raise UsageError(
            f"the weights of {name_or_path} are quantized ({method}), and what is trained and pushed is not",
            hint="convert the checkpoint to bfloat16; for QLoRA then use grpo-train quantize-base",
        )
    if family.model_type not in (*TRIED_FAMILIES, *SEEN_FAMILIES):
        log.warning(
            "no push has been tried with the family %s (docs/model-families.md); the canary after the first push tells "
            "whether the servers compute what was pushed",
            family.model_type,
        )


def attention_for(family: PretrainedConfig, wanted: str) -> str:
    """Return the attention `wanted`, or `eager` for a family that sdpa computes wrongly or not at all.

    transformers' sdpa leaves out the soft-capping of attention scores (gemma2) without a word, and knows no attention
    sinks (gpt_oss).
    """
    soft_caps = getattr(family.get_text_config(), "attn_logit_softcapping", None) is not None
    known = auto_class_of(family)._model_mapping.get(type(family), None)
    if wanted == "sdpa" and (soft_caps or not getattr(known, "_supports_sdpa", True)):
        log.info("model.attn_implementation: eager, because sdpa cannot compute the attention of %s", family.model_type)
        return "eager"
    return wanted


def freeze_tower(model: PreTrainedModel, config: ModelConfig) -> None:
    """Train the decoder and the output head only, unless the run trains the vision tower and what joins it to the
    decoder, too. Raises UsageError where it does, and the model's images are not trained on."""
    if config.train_vision_tower:
        if image_token_of(model.config) is None:
            raise UsageError(
                f"model.train_vision_tower is true, and {config.name_or_path}, of the family "
                f"{model.config.model_type}, sees no images here",
                hint="leave it out; docs/model-families.md lists the families whose images are trained on",
            )
        return
    trained = text_parameters(model)
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def pieces_to_push(model: PreTrainedModel, name_or_path: str) -> tuple[list[Piece], list[str]]:
    """Return what of the model is pushed, and the names of the checkpoint's tensors that are frozen.

    The names are those of the checkpoint that was loaded, which the servers have loaded as well. Raises UsageError when
    the checkpoint is not in safetensors, or has a tensor that cannot be made from the model's parameters.
    """
    try:
        headers = read_headers(checkpoint_folder(name_or_path))
        layout = checkpoint_layout(model, {name: header.shape for name, header in headers.items()})
    except (OSError, ValueError) as error:
        hint = "save it with transformers' save_pretrained"
        if isinstance(error, LayoutError):
            hint = "this model family cannot be pushed; docs/model-families.md lists those that can"
        raise UsageError(f"the tensors of {name_or_path} cannot be pushed: {error}", hint=hint) from error
    trained = dict(model.named_parameters(remove_duplicate=False))
    pushed = [piece for piece in layout if _changes(piece, trained)]
    return pushed, [name for piece in layout if not _changes(piece, trained) for name in piece.shapes]


def _changes(piece: Piece, parameters: Mapping[str, nn.Parameter]) -> bool:
    return any(source in parameters and parameters[source].requires_grad for source in piece.sources)


def recompute_activations(model: PreTrainedModel) -> None:
    """Keep the layers' inputs alone, and compute the rest again on the way back.

    transformers does so for layers in training mode, and loads a model in evaluation mode. Put only the layers
    themselves into training mode, because their parts would draw dropout and jitter, and set their own dropouts to 0.
    The jitter of a part stays as it is: some routers (phimoe) compute with it in evaluation mode, too.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"{type(model).__name__} has no layers whose activations could be computed again",
            hint="set model.gradient_checkpointing to false",
        )
    for layer in layers:
        layer.training = True
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float):
                setattr(layer, name, 0.0)
