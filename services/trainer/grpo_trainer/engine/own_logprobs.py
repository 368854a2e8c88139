"""The policy's logprobs of a few sequences, as the canary and the trial of shared prefixes compare them."""

from collections.abc import Sequence
from typing import Protocol

import torch

from ..algorithm.batching import micro_batches
from ..algorithm.image_tokens import Images
from ..algorithm.planning import Neighbours, fill_rows
from ..algorithm.prefixes import PrefixSharing
from ..algorithm.sequences import MicroBatch, TrainingSequence


class Scores(Protocol):
    """The policy, as far as it is needed here."""

    device: torch.device

    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]: ...


def own_logprobs(
    engine: Scores,
    sequences: Sequence[TrainingSequence],
    *,
    version: int,
    tokens_per_micro_batch: int,
    pad_token_id: int,
    prefixes: PrefixSharing | None = None,
    images: Images | None = None,
) -> list[list[float]]:
    """Return the logprobs of the trained tokens of each sequence, which all ranks compute: they are few and short.

    In padded rows, whatever the run trains with, so that what is compared with the servers shares nothing; or with
    `prefixes` shared. With many servers they do not fit one micro-batch.
    """
    if prefixes is None:
        longest_first = sorted(range(len(sequences)), key=lambda i: (-sequences[i].num_tokens, i))
        filled = fill_rows(sequences, [[i] for i in longest_first], tokens_per_micro_batch)
    else:
        neighbours = Neighbours(sequences, prefixes)
        in_order = neighbours.in_order([[i] for i in range(len(sequences))])
        filled = neighbours.fill(in_order, tokens_per_micro_batch)
    numbers = [[i for (i,) in units] for units in filled]
    (batches,) = micro_batches(
        sequences,
        [numbers],
        [0],
        version=version,
        pad_token_id=pad_token_id,
        device=engine.device,
        prefixes=prefixes,
        images=images,
    )
    found: dict[int, list[float]] = {}
    for indices, logprobs_N in zip(numbers, engine.logprobs(batches), strict=True):
        lengths = [sequences[i].num_trained for i in indices]
        found |= dict(zip(indices, (part.tolist() for part in logprobs_N.split(lengths)), strict=True))
    return [found[i] for i in range(len(sequences))]
