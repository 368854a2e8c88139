"""What policy and reference model see of images: both by one tower, unless it is trained and the reference keeps the
first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..algorithm.sequences import MicroBatch, TrainingSequence
from ..config.model import ModelConfig
from .images import SeenImages, see
from .vision_tower import VisionTower


class Sight:
    """The vision towers of a training engine; of a model without one, or whose images are not trained on, none.

    What it does is a collective where a pass through a tower is one, see `vision_tower.py`.
    """

    def __init__(self, policy: Any, reference: Any | None, config: ModelConfig, *, device: torch.device, sharded: bool):
        """`policy` and `reference` are of `Policy`, or DeepSpeed's engine around one; the reference of a run with an
        adapter is its policy."""

        def tower_of(model: Any, *, is_trained: bool) -> VisionTower | None:
            inner = getattr(model, "module", model).model
            return VisionTower.of(inner, config.name_or_path, device=device, sharded=sharded, is_trained=is_trained)

        self.tower = tower_of(policy, is_trained=config.train_vision_tower)
        self._trained = self.tower if config.train_vision_tower else None
        self._of_reference: VisionTower | None = None
        if self._trained is not None and reference is not None:
            self._of_reference = tower_of(reference, is_trained=False)

    def see(self, sequences: Sequence[TrainingSequence]) -> SeenImages | None:
        """Look at the images of this rank's sequences; None where it has none. Raises what `VisionTower.see` raises."""
        return see(self.tower, sequences) if self.tower else None

    def look_again(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> None:
        """Look at what the model's tower has no features of under its weights."""
        tower = self._own(reference=reference) or self.tower
        if tower is not None:
            tower.look_again(batch.images for batch in micro_batches)

    def inputs(self, batch: MicroBatch, *, reference: bool = False) -> tuple[Any, ...]:
        """Return what the model's forward pass takes of a micro-batch."""
        own = self._own(reference=reference)
        if own is None or batch.images is None:
            return batch.inputs
        return replace(batch, images=replace(batch.images, tower=own)).inputs

    def begin(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of an update's first micro-batch, with a gradient of 0 for a tower that is trained.

        ZeRO begins the sums of an update with what its first pass reduces. Of a parameter that comes later, or not at
        all, it would go on with the sum of an earlier update.
        """
        return loss if self._trained is None else loss + self._trained.nothing()

    def learn(self, backward: Callable[[torch.Tensor], None], optimizer: Any) -> None:
        """Train the tower on the update whose micro-batches have gone backward, see `VisionTower.learn`."""
        if self._trained is None:
            return
        # Tell ZeRO of each pass, as the engine's forward does: else its gradients take the place of those before.
        new_pass = getattr(optimizer, "clear_backward_seen_flag", lambda: None)

        def one_more(product: torch.Tensor) -> None:
            new_pass()
            backward(product)

        self._trained.learn(one_more)

    def forget(self) -> None:
        """Look at everything again where towers are trained: other weights have been loaded, or the reference has
        moved."""
        for tower in (self._trained, self._of_reference):
            if tower is not None:
                tower.forget()

    def _own(self, *, reference: bool) -> VisionTower | None:
        return self._of_reference if reference else None
