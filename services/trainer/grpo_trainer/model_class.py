"""Which class of transformers loads a model of a family."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from transformers.models.auto.auto_factory import _BaseAutoModelClass


def auto_class_of(family: "PretrainedConfig") -> "type[_BaseAutoModelClass]":
    """Return the class for causal language models, or the one that most vision-language families have of their own."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    of_text = type(family) in AutoModelForCausalLM._model_mapping
    found: type[_BaseAutoModelClass] = AutoModelForCausalLM if of_text else AutoModelForImageTextToText
    return found
