"""Every loss type on the device, against the same formulas in float64 on the CPU."""

import torch

from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig

from .check import Check, Figures, Place, check
from .made import made_batch, moved, relative_difference


@check()
def losses_equal_float64(place: Place) -> Figures:
    """Every loss type in float32, relative difference from float64 on the CPU."""
    sizes = (8, 16) if place.tiny else (256, 512)
    return {f"{name}, loss and gradient": _difference(name, sizes, place.device) for name in LOSS_TYPES}


def _difference(loss_type: str, sizes: tuple[int, int], device: torch.device) -> float:
    algorithm = AlgorithmConfig(loss_type=loss_type, beta=0.04)
    found = _loss_and_gradient(algorithm, sizes, device, torch.float32)
    right = _loss_and_gradient(algorithm, sizes, torch.device("cpu"), torch.float64)
    return max(relative_difference(*pair) for pair in zip(found, right, strict=True))


def _loss_and_gradient(
    algorithm: AlgorithmConfig, sizes: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = made_batch(*sizes, device, dtype)
    logprobs_N = moved(batch.old_logprobs_N)
    entropy_N = -logprobs_N.detach()
    loss, _ = policy_loss(logprobs_N, entropy_N, batch, algorithm, surrogate_of(algorithm))
    loss.backward()
    return loss, logprobs_N.grad


CHECKS: list[Check] = [losses_equal_float64]
