"""The configuration of the policy's model family, without the model."""

from typing import Any

from transformers import AutoConfig, PretrainedConfig

from ..config.model import ModelConfig
from ..errors import TrainerError, UsageError, model_error_class
from ..model_files import what_it_is

IMAGE_FAMILIES = (
    "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava", "llava_next",
    "llava_onevision", "internvl", "mistral3", "glm4v",
)  # fmt: skip
"""Model types with whose images the trainer computes what transformers does: tests/trainer/test_images.py.

A family whose images see each other ahead (gemma3, paligemma) or whose decoder reads them otherwise (mllama) would go
unnoticed until the canary, hence a list."""


def load_family(config: ModelConfig) -> PretrainedConfig:
    """Raises UsageError when there is none, and UnavailableError when the Hub does not answer."""
    try:
        family: PretrainedConfig = AutoConfig.from_pretrained(
            config.name_or_path, trust_remote_code=config.trust_remote_code
        )
        return family
    except (OSError, ValueError) as error:
        raise no_model(config, error) from error


def has_experts(family: PretrainedConfig) -> bool:
    """Whether each token takes some of several experts."""
    text = family.get_text_config()
    counts = [getattr(text, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts")]
    counts.append(getattr(getattr(text, "ffn_config", None), "moe_num_experts", None))  # dbrx
    return any((count or 0) > 1 for count in counts)


def image_token_of(family: PretrainedConfig) -> int | None:
    """The token that stands for each place of an image; None for a family whose images are not trained on."""
    if family.model_type not in IMAGE_FAMILIES:
        return None
    token_id = getattr(family, "image_token_id", None)
    return token_id if token_id is not None else getattr(family, "image_token_index", None)


def load_image_processor(name_or_path: str) -> Any:
    """Load the checkpoint's own. Raises UsageError when it has none that works here."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(name_or_path)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"{name_or_path} has no image processor that works here: {str(error).splitlines()[0]}",
            hint="it is preprocessor_config.json or processor_config.json beside the weights; some need torchvision",
        ) from error


def no_model(config: ModelConfig, error: Exception) -> TrainerError:
    """Return the error for a model whose configuration, or a model of it, cannot be made."""
    return model_error_class(config.name_or_path, error)(
        f"no model in {config.name_or_path}: {str(error).splitlines()[0]}",
        hint=what_it_is(config.name_or_path) or "model.name_or_path is a folder or a Hugging Face name",
    )
