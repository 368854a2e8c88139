"""The loss that balances the experts of a mixture: which models have one, its weight, and what it is.

    E · Σ_e f_e · P_e

f_e is how many of its `num_experts_per_tok` choices a token gives to expert e, P_e the router's probability of e, both
as means over tokens and layers (Switch Transformers, arXiv 2101.03961, equations 4 to 6). It is computed by the
family's own function in transformers, which TRL takes as well.

The means are those of a micro-batch, and no sum over tokens: this part of the loss depends on how an update is cut.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ..config.algorithm import AlgorithmConfig
from ..errors import UsageError

log = logging.getLogger(__name__)

FUNCTION = "load_balancing_loss_func"


def with_balance_coefficient(algorithm: AlgorithmConfig, family: PretrainedConfig) -> AlgorithmConfig:
    """Return `algorithm` with a number in place of `router_aux_loss_coef: model`: the model's own, 0 where it has none.

    Raises UsageError for a weight above 0 where the `family` has no such loss.
    """
    wanted = algorithm.router_aux_loss_coef
    known = AutoModelForCausalLM._model_mapping.get(type(family), None)
    has_loss = known is not None and _function_of(known) is not None
    if wanted == "model":
        own = getattr(family.get_text_config(), "router_aux_loss_coef", None) if has_loss else None
        if own:
            log.info("algorithm.router_aux_loss_coef: %g, the model's own", own)
        return algorithm.model_copy(update={"router_aux_loss_coef": float(own or 0.0)})
    if wanted > 0.0 and not has_loss:
        raise UsageError(
            f"algorithm.router_aux_loss_coef is {wanted:g}, and {family.model_type} has no loss that balances experts",
            hint="set it to 0, or to model: the model's own weight, 0 where it has none",
        )
    return algorithm


def balance_loss(
    model: PreTrainedModel, router_logits: tuple[torch.Tensor, ...], uses_BL: torch.Tensor
) -> torch.Tensor:
    """Logits [B · L, E] of each layer with experts → the loss, a scalar. A token counts `uses_BL` times."""
    function = _function_of(type(model))
    if function is None:
        raise ValueError(f"{type(model).__name__} has no loss that balances experts")
    loss: torch.Tensor = function(router_logits, model.num_experts, model.num_experts_per_tok, uses_BL)
    return loss


def _function_of(model_class: type) -> Callable[..., Any] | None:
    return getattr(sys.modules[model_class.__module__], FUNCTION, None)
