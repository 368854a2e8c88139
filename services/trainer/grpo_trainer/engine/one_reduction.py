"""One reduction of gradients per optimizer update under ZeRO-3, by DeepSpeed's `coalesce_grad_reduction`.

By default ZeRO-2 and 3 reduce after every backward pass, so that a rank keeps its shard of the gradients only. Under
ZeRO-0 and 1 each rank keeps all gradients, and `step` reduces them once.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class OneReduction:
    """Sum the whole gradients on every rank over the micro-batches of an update: 4 bytes for each trained parameter.

    The sum is in float32, as that of the shards otherwise is; it differs by the order of its terms. A parameter that a
    forward pass uses twice (a tied output head) has its two gradients summed in float32, too, instead of in its dtype.
    """

    def __init__(self, engine: Any):
        self._engine = engine
        self._trained = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
        for parameter in self._trained:
            parameter.grad_dtype = torch.float32

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Reduce at the end what the backward passes inside have summed; a collective.

        Drop the gradients after an error: DeepSpeed would reduce them on this rank, and wait for the others for as long
        as a collective may take.
        """
        with self._engine.coalesce_grad_reduction():
            try:
                yield
            except BaseException:
                for parameter in self._trained:
                    parameter.grad = None
                raise
