"""Rotary embeddings that depend on the length: up to which context trainer and rollout server compute alike.

Up to its original context a model with `longrope` (Phi-3, Phi-4-mini) or `dynamic` uses one set of frequencies. Beyond
it transformers chooses by the longest sequence of each call, so that logprobs depend on what else is in a micro-batch,
and vLLM chooses once, by its --max-model-len.
"""

from typing import Any

from transformers import PretrainedConfig


def one_rope_context(family: PretrainedConfig) -> int | None:
    """Return the tokens up to which the family has one set of frequencies; None when it has one for all lengths."""
    text = family.get_text_config()
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    # Families with several types of layers have parameters for each type.
    by_layer = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    contexts = [
        one.get("original_max_position_embeddings") or text.max_position_embeddings
        for one in by_layer
        if one.get("rope_type") in ("longrope", "dynamic")
    ]
    return min(contexts, default=None)
