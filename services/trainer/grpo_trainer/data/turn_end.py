"""How a chat template ends the assistant's turn, and whether the servers stop there.

The token is often not `tokenizer.eos_token`: gemma writes `<end_of_turn>`, and a ChatML template writes `<|im_end|>`
also where the end of text is `<|endoftext|>`, as that of a base model is.
"""

from typing import TYPE_CHECKING, Any

from ..config.run_config import RunConfig
from .prompt_row import PromptRow
from .recipes import Message
from .rendering import Renderer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

PROBE = "answer-31415926"


def end_of_turn(renderer: Renderer, prompt: list[Message]) -> str:
    """Return what the template writes after an answer to `prompt`, up to its first special token; empty where it writes
    none. It does not depend on the answer, so one that no template would change is rendered."""
    probe: Message = {"role": "assistant", "content": PROBE}
    try:
        [whole] = renderer.rendered([[*prompt, probe]], [], answered=True)
    except Exception:  # a template without a place for answers
        return ""
    tokenizer = renderer.tokenizer
    _, found, rest = whole.rpartition(PROBE)
    special = {str(token) for token in tokenizer.added_tokens_decoder.values()} | {*tokenizer.all_special_tokens}
    tokens = [token for token in special if token.strip() and token in rest]
    if not found or not tokens:
        return ""
    first = min(tokens, key=lambda token: (rest.index(token), -len(token)))
    return rest[: rest.index(first)] + first


def servers_stop_at(
    config: RunConfig, row: PromptRow, tokenizer: "PreTrainedTokenizerBase", family: "PretrainedConfig"
) -> list[str]:
    """Return a sentence where answers that end their turn would go on: no token at which the servers stop, and no text
    of `rollout.stop`, is in what the chat template writes behind an answer to `row`."""
    renderer = Renderer(tokenizer, config.data.chat_template_kwargs)
    end = end_of_turn(renderer, row.prompt) if isinstance(row.prompt, list) and renderer.has_template else ""
    ids = tokenizer(end, add_special_tokens=False)["input_ids"] if end else []
    ends = {*ends_of(config.model.name_or_path, tokenizer, family), *config.rollout.stop_token_ids}
    if not ids or {*ids} & ends or any(text in end for text in config.rollout.stop):
        return []
    names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(sorted(ends)))) or "none"
    return [
        f"the chat template ends an answer with {end.strip()}, and the servers do not stop there, but at {names}: add "
        f"{ids[-1]} to rollout.stop_token_ids"
    ]


def ends_of(name_or_path: str, tokenizer: "PreTrainedTokenizerBase", family: "PretrainedConfig") -> set[int]:
    """Return the ids at which a rollout server of the model stops: those of generation_config.json, or of config.json
    without one, and the tokenizer's own."""
    from transformers import GenerationConfig

    try:
        named: Any = GenerationConfig.from_pretrained(name_or_path).eos_token_id
    except (OSError, ValueError):  # there is none
        named = family.get_text_config().eos_token_id
    found = named if isinstance(named, list) else [named]
    return {one for one in [*found, tokenizer.eos_token_id] if isinstance(one, int)}
