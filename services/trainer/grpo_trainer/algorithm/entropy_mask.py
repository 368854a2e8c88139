"""The entropy mask: only the tokens at which the policy is least certain have a policy term.

    kept_n = H_n ≥ (quantile of all H of the update at 1 − top_entropy_quantile) − TIE_NATS

H_n is the entropy of the policy's distribution at token n, the quantile is interpolated linearly. arXiv 2506.01939,
which keeps a fifth; TRL's `top_entropy_quantile`. Entropies and quantile are of the whole optimizer update on all
ranks, under the weights that the generation batch starts with: which tokens are kept depends neither on how the update
is cut nor on earlier updates of the batch. TRL takes a quantile for each micro-batch, under the weights of the moment.

The mask acts on the surrogate and on the entropy bonus, which becomes the mean over the kept tokens. It does not act on
the KL term, nor on any weight: a masked token counts in every normaliser.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..config.algorithm import AlgorithmConfig
from .reduction import Tally
from .sequences import MicroBatch

TIE_NATS = 1e-5
"""Entropies this close are equal but for their rounding, which depends on the micro-batch: those of the first tokens of
a prompt's completions. They are kept or masked together."""


def mark_high_entropy(
    micro_batches: Sequence[MicroBatch],
    entropies: Sequence[torch.Tensor],
    *,
    top_quantile: float,
    counts: bool = True,
) -> None:
    """Fill in which tokens of an update are kept, given the entropies [N] of this rank's micro-batches; a collective.

    The update has at least one token on all ranks together. `counts`: no other rank has the same micro-batches and
    counts them.
    """
    own = torch.cat(list(entropies))
    of_update = _over_ranks(own if counts else own[:0])
    threshold = _quantile(of_update, 1.0 - top_quantile) - TIE_NATS
    num_kept = int((of_update >= threshold).sum())
    for batch, entropy_N in zip(micro_batches, entropies, strict=True):
        batch.high_entropy_N, batch.update_high_entropy_tokens = entropy_N >= threshold, num_kept


def entropy_mask(
    entropy_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig, tally: Tally
) -> torch.Tensor | None:
    """Which tokens have a policy term [N], bool; None when all have. Raises ValueError when that is not filled in."""
    if not algorithm.masks_low_entropy:
        return None
    if batch.high_entropy_N is None:
        raise ValueError("high_entropy_N is not filled in")
    tally.mean("entropy_mask/masked", ~batch.high_entropy_N)
    tally.mean("entropy_mask/entropy", entropy_N[batch.high_entropy_N])
    return batch.high_entropy_N


def _quantile(values_N: torch.Tensor, share: float) -> torch.Tensor:
    """What `torch.quantile` returns, which refuses more than 16 million values."""
    ordered_N = values_N.sort().values
    rank = share * (len(ordered_N) - 1)
    below = int(rank)
    return torch.lerp(ordered_N[below], ordered_N[min(below + 1, len(ordered_N) - 1)], rank - below)


def _over_ranks(values_N: torch.Tensor) -> torch.Tensor:
    """The values of all ranks, of which each has its own number, one rank after the other."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values_N
    num_own = torch.tensor([len(values_N)], device=values_N.device)
    counts = [torch.empty_like(num_own) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, num_own)
    padded = values_N.new_zeros(int(torch.cat(counts).max()))
    padded[: len(values_N)] = values_N
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])
