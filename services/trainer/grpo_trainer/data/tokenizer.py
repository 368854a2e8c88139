"""The policy's tokenizer, which renders prompts and is saved beside the final model."""

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer

from ..config.model import ModelConfig
from ..errors import UsageError, model_error_class


def load_tokenizer(config: ModelConfig) -> Any:
    """Raises UsageError when there is none, and UnavailableError when the Hub does not answer."""
    try:
        return AutoTokenizer.from_pretrained(config.name_or_path, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise model_error_class(config.name_or_path, error)(
            f"no tokenizer in {config.name_or_path}: {str(error).splitlines()[0]}",
            hint="model.name_or_path is a folder or a Hugging Face name",
        ) from error


def check_stop_tokens(token_ids: Sequence[int], tokenizer: Any) -> None:
    """Raises UsageError for an id that no token of the tokenizer has, which no completion could end with."""
    unknown = [token_id for token_id in token_ids if token_id >= len(tokenizer)]
    if unknown:
        raise UsageError(
            f"rollout.stop_token_ids holds {unknown[0]}, and the tokenizer's last token is {len(tokenizer) - 1}",
            hint="look up the id of the token in tokenizer.json, or give its text in rollout.stop",
        )
