"""Save the state of an engine, and load it: on as many ranks to the bit, on another number of ranks to 1e-6."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_proto.checkpoint_layout import shape_of

from ..errors import RunError, storage_error_class
from .deepspeed_files import load_file
from .random_state import random_state, restore_random_state, seed_anew
from .reference import MovingReference
from .reshaping import load_from_other_ranks
from .state import STATE_TAG, SYNC, read_engine_state, write_engine_state
from .write_errors import Write, save_deepspeed_state

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedState:
    """What of an engine is saved: DeepSpeed's part, the reference model if it moves, and this rank's random state.

    `frozen`: with the frozen parameters; without them, an adapter alone is saved. `layout`: see `state.layout`.
    `state_bytes`: the optimizer's state of a number, in bytes. `beat` is called after each file. All ranks call the
    methods.
    """

    deepspeed_engine: Any
    moving: MovingReference | None
    layout: Mapping[str, Any]
    rank: int
    seed: int
    frozen: bool
    state_bytes: float
    beat: Callable[[], None]

    def save(self, folder: Path, counts: Mapping[str, float | None], write: Write) -> None:
        """Have the state written into `folder` by `write`, and the engine's `counts`."""
        save_deepspeed_state(self.deepspeed_engine, folder, write, frozen=self.frozen, beat=self.beat)
        write(random_state(), self._random_file(folder))
        if self.moving is not None:
            self.moving.save(folder, write)
            self.beat()
        if self.rank == 0:
            write_engine_state(folder, {**self.layout}, {**counts})

    @property
    def num_bytes(self) -> int:
        """Size of what `save` has written on all ranks, but for what is small beside the tensors."""
        engine = self.deepspeed_engine
        parameters = list(engine.module.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        # The optimizer's state and, with ZeRO, the trained weights in float32: under ZeRO-3 these not once more.
        numbers = sum(math.prod(shape_of(parameter)) for parameter in trained)
        optimizer = round(numbers * (self.state_bytes + (4 if engine.zero_optimization() else 0)))
        weights = num_bytes_of(parameters if self.frozen else trained)
        if engine.zero_optimization_stage() == 3:
            weights -= num_bytes_of(trained)
        return optimizer + weights + (num_bytes_of(parameters) if self.moving is not None else 0)

    def load(self, folder: Path) -> dict[str, Any]:
        """Go back to what `save` wrote, also in an engine that has trained meanwhile. Returns the counts.

        Raises what `read_engine_state` raises, and RunError when the reference model cannot go back.
        """
        try:
            return self._load(folder)
        except OSError as error:
            raise storage_error_class(error)(f"{folder} holds no engine state that can be read: {error}") from error

    def _load(self, folder: Path) -> dict[str, Any]:
        saved = read_engine_state(folder, {**self.layout})
        if self.moving is not None and self.moving.has_moved and not saved.get(SYNC):
            raise RunError(
                f"{folder} is from before the reference model began to move, and has none to go back to",
                hint="go on with --resume, which begins with the run's first model",
            )
        num_ranks, own_number = saved["world_size"], self.layout["world_size"]
        if num_ranks != own_number and self.rank == 0:
            log.warning(
                "%s was saved by %d rank(s) and is resumed on %d: the run goes on as before to 1e-6, not to the bit",
                folder,
                num_ranks,
                own_number,
            )
        engine = self.deepspeed_engine
        with _own_settings(engine.optimizer):
            # Without ZeRO's optimizer every rank holds the whole state, and one of them has saved it.
            if num_ranks != own_number and engine.zero_optimization():
                load_from_other_ranks(engine, folder / STATE_TAG, num_ranks=num_ranks, strict=self.frozen)
            else:
                engine.checkpoint_engine.load = load_file
                engine.load_checkpoint(str(folder), tag=STATE_TAG, load_module_strict=self.frozen)
        if self.moving is not None and saved.get(SYNC):  # else it has not moved yet
            self.moving.load(folder, num_ranks=num_ranks)
        if self.rank < num_ranks:
            restore_random_state(torch.load(self._random_file(folder), weights_only=True))
        else:
            seed_anew(self.seed, updates_done=saved["updates_done"], rank=self.rank)
        return saved

    def _random_file(self, folder: Path) -> Path:
        return folder / STATE_TAG / f"random-{self.rank}.pt"


@contextmanager
def _own_settings(optimizer: Any) -> Iterator[None]:
    """Keep what the run file sets while a state is loaded, which brings its own weight decay, betas, epsilon and clip.

    `optimizer` is torch's, or DeepSpeed's around it, which keeps the clip with its state under ZeRO 1 and 2.
    """
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    clip = getattr(optimizer, "clip_grad", None)
    yield
    for group, own in zip(optimizer.param_groups, groups, strict=True):
        group.update(own)
    if clip is not None:
        optimizer.clip_grad = clip


def num_bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Size of whole tensors, also where ZeRO-3 has split them over the ranks."""
    return sum(math.prod(shape_of(tensor)) * tensor.element_size() for tensor in tensors)
