"""A user's own surrogate: what it raises, or returns instead of one loss for each token, is an error with its name."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...errors import UpdateError
from ...extension import failure_of


def guarded(function: Callable[..., Any], name: str) -> Callable[..., torch.Tensor]:
    """`function`, with an UpdateError for whatever it raises and for a loss that is not a tensor of shape [N].

    A scalar would spread over all tokens without a word, and be weighed once for each.
    """

    @wraps(function)  # keeps what it declares that it reads
    def call(logprobs_N: torch.Tensor, *arguments: Any) -> torch.Tensor:
        try:
            loss_N = function(logprobs_N, *arguments)
        except Exception as error:
            raise UpdateError(f"algorithm.loss {failure_of(name, error)}") from error
        shape = tuple(loss_N.shape) if isinstance(loss_N, torch.Tensor) else type(loss_N).__name__
        if shape != tuple(logprobs_N.shape):
            raise UpdateError(
                f"algorithm.loss {name} returned {shape} for {len(logprobs_N)} tokens",
                hint="return a tensor with one loss for each token; its weight comes from the normaliser",
            )
        return loss_N

    return call
