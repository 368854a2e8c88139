"""What a model's vision tower makes of the images of prompts: features for the decoder, and positions in its rows.

The tower is frozen, so its features are computed once for a generation batch, without a gradient, and stand in all of
its updates and under the reference model. The images are decoded as the rollout server decodes them, and cut by the
checkpoint's own image processor; whether both sides then compute the same is what the canary finds out.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from grpo_proto.images import decode_image

from ..algorithm.image_tokens import ImageInputs, are_places, images_by_key, keys_and_places, names_in
from ..algorithm.sequences import TrainingSequence
from ..errors import RunError
from .family import image_token_of, load_image_processor

BLANK_SIDE = 64
"""Of the picture that a rank looks at while another has more of them, in pixels."""


def inputs_of_decoder(decoder: nn.Module, input_ids_BL: torch.Tensor, images: ImageInputs | None) -> dict[str, Any]:
    """Return what the decoder takes in place of token ids: embeddings, with the features where the images are.

    Rows without an image are embedded here, too: under ZeRO-3 a rank that has images and one that has none gather the
    same parameters in the same order.
    """
    embedded_BLH = decoder.get_input_embeddings()(input_ids_BL)
    if images is None:
        return {"inputs_embeds": embedded_BLH}
    feature_MH = images.feature_MH.to(embedded_BLH.dtype)
    flat_H = embedded_BLH.flatten(0, 1).index_copy(0, images.place_M, feature_MH)
    inputs: dict[str, Any] = {"inputs_embeds": flat_H.unflatten(0, tuple(input_ids_BL.shape))}
    if images.deep_features_DMH is not None:
        seen = torch.zeros(input_ids_BL.numel(), dtype=torch.bool, device=input_ids_BL.device)
        seen[images.place_M] = True
        inputs |= {
            "visual_pos_masks": seen.view(input_ids_BL.shape),
            "deepstack_visual_embeds": list(images.deep_features_DMH),
        }
    return inputs


class Features:
    """Of one prompt's images: what stands at its places, in order, and their grids, for families that read them."""

    def __init__(self, of_images: Sequence[tuple[Any, Mapping[str, torch.Tensor]]]):
        self.feature_KH = torch.cat([_joined(output.pooler_output) for output, _ in of_images])
        deep = [getattr(output, "deepstack_features", None) for output, _ in of_images]
        self.deep_DKH = None
        if deep[0] is not None:
            self.deep_DKH = torch.stack(
                [torch.cat([_joined(one) for one in layer]) for layer in zip(*deep, strict=True)]
            )
        grids = [inputs["image_grid_thw"] for _, inputs in of_images if "image_grid_thw" in inputs]
        self.grid_thw = torch.cat(grids) if grids else None


class SeenImages:
    """The images of a rank's sequences, by their key; an `Images` of `algorithm/image_tokens.py`."""

    def __init__(self, features: Mapping[int, Features], tower: "VisionTower"):
        self.image_token_id = tower.image_token_id
        self._features, self._tower = features, tower
        self._positions: dict[bytes, NDArray[np.int64]] = {}

    def inputs(self, names_M: NDArray[np.int64], place_M: NDArray[np.int64]) -> ImageInputs:
        keys_M, number_M = keys_and_places(names_M)
        feature_MH: list[torch.Tensor] = []
        deep_DMH: list[torch.Tensor] = []
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(keys_M)) + 1), len(keys_M)]):
            of_prompt, numbers = self._features[int(keys_M[start])], number_M[start:end]
            index = torch.from_numpy(numbers).to(self._tower.device)
            feature_MH.append(of_prompt.feature_KH[index])
            if of_prompt.deep_DKH is not None:
                deep_DMH.append(of_prompt.deep_DKH[:, index])
        place = torch.from_numpy(place_M).to(self._tower.device)
        return ImageInputs(place, torch.cat(feature_MH), torch.cat(deep_DMH, dim=1) if deep_DMH else None)

    def positions(self, token_ids_L: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Those of the context with its images are computed once for all sequences that begin with it; each token
        behind is one further."""
        rope_index = self._tower.rope_index
        if rope_index is None:
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
            grids = [self._features[int(one)].grid_thw for one in keys_M[number_M == 0]]
            given = [grid for grid in grids if grid is not None]
            found = self._positions[key] = rope_index(beginning, torch.cat(given) if given else None)
        behind_L = found.max() + 1 + np.arange(len(token_ids_L) - length)
        return np.hstack([found, np.tile(behind_L, (3, 1))])


class VisionTower:
    """The tower of a policy, and the processor of its checkpoint, which is loaded for the first image."""

    def __init__(
        self, model: PreTrainedModel, name_or_path: str, *, image_token_id: int, device: torch.device, sharded: bool
    ):
        """`sharded`: under ZeRO-3 every pass through the tower is a collective."""
        self.image_token_id, self.device = image_token_id, device
        self._model, self._name_or_path, self._sharded = model, name_or_path, sharded
        self._features: dict[int, Features] = {}
        self.reads = set(inspect.signature(model.get_image_features).parameters)
        index = getattr(getattr(model, model.base_model_prefix, None), "get_rope_index", None)
        self.rope_index = self._rope_index(index) if index is not None else None

    @classmethod
    def of(cls, model: PreTrainedModel, name_or_path: str, *, device: torch.device, sharded: bool) -> Self | None:
        """None for a model whose images are not trained on."""
        token_id = image_token_of(model.config)
        if token_id is None:
            return None
        return cls(model, name_or_path, image_token_id=token_id, device=device, sharded=sharded)

    @cached_property
    def processor(self) -> Any:
        return load_image_processor(self._name_or_path)

    def see(self, sequences: Sequence[TrainingSequence]) -> SeenImages | None:
        """Look at the images of all sequences of this rank; None where no rank has any.

        Images of the batch before are not looked at again. A collective when the model is sharded. Raises RunError for
        a sequence with other places than the tower has features of its images.
        """
        prompts = images_by_key([one.token_ids_L for one in sequences], [one.images for one in sequences])
        unseen = {key: images for key, images in prompts.items() if key not in self._features}
        num_images = sum(map(len, unseen.values()))
        passes = self._most_of_ranks(num_images)
        seen = {key: self._features[key] for key in prompts.keys() - unseen.keys()}
        seen |= {key: self.features_of(images) for key, images in unseen.items()}
        for _ in range(passes - num_images):
            self._look(_blank())
        self._features = seen
        for one in sequences:
            _check_places(one, seen)
        return SeenImages(seen, self) if seen else None

    def features_of(self, images: Sequence[str]) -> Features:
        """Look at the images of one prompt, encoded."""
        return Features([self._look(decode_image(one)) for one in images])

    def _most_of_ranks(self, num_images: int) -> int:
        if not self._sharded or dist.get_world_size() == 1:
            return num_images
        most = torch.tensor(num_images, device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _look(self, image: Any) -> tuple[Any, Mapping[str, torch.Tensor]]:
        """One image through the processor and the tower."""
        made = self.processor(images=[image], return_tensors="pt")
        inputs = {name: value.to(self.device) for name, value in made.items() if name in self.reads}
        inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        return self._model.get_image_features(**inputs, return_dict=True), inputs

    def _rope_index(
        self, of_model: Callable[..., tuple[torch.Tensor, Any]]
    ) -> Callable[[NDArray[np.int64], torch.Tensor | None], NDArray[np.int64]]:
        """The model's own positions in time, height and width [3, L] of token ids with names of places, by the grids of
        the images."""

        def positions(token_ids_L: NDArray[np.int64], grid_thw: torch.Tensor | None) -> NDArray[np.int64]:
            is_place_L = are_places(token_ids_L)
            ids = torch.from_numpy(np.where(is_place_L, self.image_token_id, token_ids_L))[None]
            kinds = torch.from_numpy(is_place_L.astype(np.int32))[None]
            grids = None if grid_thw is None else grid_thw.cpu()
            found, _ = of_model(input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=grids)
            in_space: NDArray[np.int64] = found[-3:, 0].numpy()
            return in_space

        return positions


def _check_places(sequence: TrainingSequence, seen: Mapping[int, Features]) -> None:
    """A row may lack the last of them: those of images that an episode shows behind its last trained turn."""
    keys_M, number_M = keys_and_places(names_in(sequence.token_ids_L))
    begins = np.flatnonzero(number_M == 0)
    for start, end in pairwise([*begins, len(number_M)]):
        count = len(seen[int(keys_M[start])].feature_KH)
        if end - start == count:
            continue
        raise RunError(
            f"a prompt has {end - start} image tokens, and the trainer's image processor makes {count} of its images",
            hint="use the same checkpoint and the same libraries on both sides, and no --mm-processor-kwargs on the "
            "rollout servers",
        )


def _joined(features: Any) -> torch.Tensor:
    """One row for each place, whether the tower gives a list, one entry an image or tile, or one tensor."""
    joined = torch.cat([one.flatten(0, -2) for one in features]) if isinstance(features, list | tuple) else features
    return joined.flatten(0, -2)


def _blank() -> Any:
    from PIL import Image

    return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))
