"""The policy's tokenizer, which renders prompts and is saved beside the final model."""

from collections.abc import Sequence
from typing import Any

from transformers import AutoTokenizer

from ..config.cold_start import ColdStartModel
from ..config.model import ModelConfig
from ..errors import UsageError, model_error_class
from ..model_files import refuse_missing_folder, what_it_is
from .prompts import file_text


def load_tokenizer(config: ModelConfig) -> Any:
    """Load the tokenizer, with the chat template of the configuration in place of its own, if there is one.

    Raises UsageError when there is none, or no such template, and UnavailableError when the Hub does not answer.
    """
    refuse_missing_folder(config.name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.name_or_path, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise model_error_class(config.name_or_path, error)(
            f"no tokenizer in {config.name_or_path}: {str(error).splitlines()[0]}",
            hint=what_it_is(config.name_or_path) or "model.name_or_path is a folder or a Hugging Face name",
        ) from error
    if (template := chat_template(config)) is not None:
        tokenizer.chat_template = template
    return tokenizer


def chat_template(config: ModelConfig | ColdStartModel) -> str | None:
    """Return the template of the configuration, None when it has none. Raises UsageError for what is none."""
    text = file_text(config.chat_template, "model.chat_template")
    template = config.chat_template if text is None else text  # with its end: a server reads the file as it is
    if template is not None and "{{" not in template and "{%" not in template:
        raise UsageError(
            f"model.chat_template is no file and no Jinja template, which has {{{{ … }}}}: {template[:100]!r}",
            hint="give an existing file, or the template itself",
        )
    return template


def check_stop_tokens(token_ids: Sequence[int], tokenizer: Any) -> None:
    """Raises UsageError for an id that no token of the tokenizer has, which no completion could end with."""
    unknown = [token_id for token_id in token_ids if token_id >= len(tokenizer)]
    if unknown:
        raise UsageError(
            f"rollout.stop_token_ids holds {unknown[0]}, and the tokenizer's last token is {len(tokenizer) - 1}",
            hint="look up the id of the token in tokenizer.json, or give its text in rollout.stop",
        )
