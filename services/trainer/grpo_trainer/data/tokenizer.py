"""The policy's tokenizer, which renders prompts and is saved beside the final model."""

from typing import Any

from transformers import AutoTokenizer

from ..config.model import ModelConfig
from ..errors import model_error_class


def load_tokenizer(config: ModelConfig) -> Any:
    """Raises UsageError when there is none, and UnavailableError when the Hub does not answer."""
    try:
        return AutoTokenizer.from_pretrained(config.name_or_path, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise model_error_class(config.name_or_path, error)(
            f"no tokenizer in {config.name_or_path}: {str(error).splitlines()[0]}",
            hint="model.name_or_path is a folder or a Hugging Face name",
        ) from error
