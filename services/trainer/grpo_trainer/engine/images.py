"""What the images of prompts are to a decoder: the features of a vision tower, and positions in its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..algorithm.image_tokens import ImageInputs, are_places, keys_and_places
from ..algorithm.sequences import TrainingSequence
from .vision_tower import VisionTower


def inputs_of_decoder(decoder: nn.Module, input_ids_BL: torch.Tensor, images: ImageInputs | None) -> dict[str, Any]:
    """Return what the decoder takes in place of token ids: embeddings, with the features where the images are.

    Rows without an image are embedded here, too: under ZeRO-3 a rank that has images and one that has none gather the
    same parameters in the same order.
    """
    embedded_BLH = decoder.get_input_embeddings()(input_ids_BL)
    if images is None:
        return {"inputs_embeds": embedded_BLH}
    feature_MH, deep_DMH = images.tower.features_at(images.names_M)
    flat_H = embedded_BLH.flatten(0, 1).index_copy(0, images.place_M, feature_MH.to(embedded_BLH.dtype))
    inputs: dict[str, Any] = {"inputs_embeds": flat_H.unflatten(0, tuple(input_ids_BL.shape))}
    if deep_DMH is not None:
        seen = torch.zeros(input_ids_BL.numel(), dtype=torch.bool, device=input_ids_BL.device)
        seen[images.place_M] = True
        inputs |= {
            "visual_pos_masks": seen.view(input_ids_BL.shape),
            "deepstack_visual_embeds": list(deep_DMH.to(embedded_BLH.dtype)),
        }
    return inputs


def see(tower: VisionTower, sequences: Sequence[TrainingSequence]) -> "SeenImages | None":
    """Have a tower look at the images of a rank's sequences; None where they have none. A collective, and raises, as
    `VisionTower.see`."""
    prompts = tower.see(sequences)
    return SeenImages(prompts, tower) if prompts else None


@dataclass
class SeenImages:
    """The images of a rank's sequences, by their key, and the tower that has looked at them; an `Images` of
    `algorithm/image_tokens.py`."""

    prompts: Mapping[int, tuple[str, ...]]
    tower: VisionTower
    _positions: dict[bytes, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def image_token_id(self) -> int:
        return self.tower.image_token_id

    def inputs(self, names_M: NDArray[np.int64], place_M: NDArray[np.int64]) -> ImageInputs:
        return ImageInputs(torch.from_numpy(place_M).to(self.tower.device), names_M.copy(), self.prompts, self.tower)

    def positions(self, token_ids_L: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Those of the context with its images are computed once for all sequences that begin with it; each token
        behind is one further."""
        if not self.tower.has_positions:
            return None
        places = np.flatnonzero(are_places(token_ids_L))
        length = int(places[-1]) + 1 if len(places) else 0
        if not length:
            return np.tile(np.arange(len(token_ids_L)), (3, 1))
        beginning = token_ids_L[:length]
        key = beginning.tobytes()
        found = self._positions.get(key)
        if found is None:
            keys_M, number_M = keys_and_places(beginning[places])
            found = self._positions[key] = self.tower.positions(beginning, keys_M[number_M == 0])
        behind_L = found.max() + 1 + np.arange(len(token_ids_L) - length)
        return np.hstack([found, np.tile(behind_L, (3, 1))])
