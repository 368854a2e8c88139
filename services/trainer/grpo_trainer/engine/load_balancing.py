"""The load-balancing loss of a mixture of experts (MoE), TRL's auxiliary loss: its weight, and its value.

    E · Σ_e f_e · P_e

over the E experts of a layer. f_e is how many of its `num_experts_per_tok` choices a token gives to expert e on
average, P_e the average probability that the router gives to e (Switch Transformers, arXiv 2101.03961, equations 4 to
6). Averages are over all layers with experts and the tokens of a micro-batch: unlike the rest of the loss, this part
depends on how an update is cut. The family's own function in transformers computes it, as for TRL.
"""

import logging
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ..config.algorithm import AlgorithmConfig
from ..errors import RunError, UsageError
from ..model_class import auto_class_of
from .family import has_experts

log = logging.getLogger(__name__)

FUNCTION = "load_balancing_loss_func"
PARAMETERS = {"gate_logits", "num_experts", "top_k", "attention_mask"}
NO_LOSS = "has no load-balancing loss of experts in transformers"


def router_aux_loss_coef(algorithm: AlgorithmConfig, family: PretrainedConfig) -> float:
    """Return the weight of the load-balancing loss: where `algorithm` says `model`, that of the model's configuration,
    or 0 where the model has no such loss.

    Raises UsageError for a weight above 0 and a model without such a loss.
    """
    wanted, has_loss = algorithm.router_aux_loss_coef, _has_loss(family)
    if wanted == "model":
        own = getattr(family.get_text_config(), "router_aux_loss_coef", None) if has_loss else None
        why = "as the model's configuration says"
        if own is None:
            why = "the model's configuration names none" if has_loss else f"{family.model_type} {NO_LOSS}"
        log.info("algorithm.router_aux_loss_coef is %g: %s", own or 0.0, why)
        return float(own or 0.0)
    if wanted > 0.0 and not has_loss:
        raise UsageError(
            f"algorithm.router_aux_loss_coef is {wanted:g}, and {family.model_type} {NO_LOSS}",
            hint="set it to 0, or to model, which is 0 then",
        )
    return wanted


def load_balancing_loss(
    model: PreTrainedModel, router_logits: tuple[torch.Tensor, ...], token_counts_BL: torch.Tensor
) -> torch.Tensor:
    """Router logits [B · L, E] of each layer with experts → the loss, a scalar. The averages count each token as often
    as `token_counts_BL` says. Raises RunError when the model has no layer with experts."""
    function = _function_in(type(model).__module__)
    if function is None or not router_logits:
        raise RunError(
            f"no layer of this {model.config.model_type} has experts whose load could be balanced",
            hint="set algorithm.router_aux_loss_coef to 0",
        )
    loss: torch.Tensor = function(
        gate_logits=router_logits,
        num_experts=model.num_experts,
        top_k=model.num_experts_per_tok,
        attention_mask=token_counts_BL,
    )
    return loss


def _has_loss(family: PretrainedConfig) -> bool:
    # A configuration of the model's own code may have the name of one of transformers'.
    if not has_experts(family) or not type(family).__module__.startswith("transformers."):
        return False
    model_class = auto_class_of(family)._model_mapping.get(type(family), None)
    return model_class is not None and _function_in(model_class.__module__) is not None


def _function_in(module: str) -> Callable[..., Any] | None:
    function = getattr(sys.modules[module], FUNCTION, None)
    return function if function is not None and signature(function).parameters.keys() == PARAMETERS else None
