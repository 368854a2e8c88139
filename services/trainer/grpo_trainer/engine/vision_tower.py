"""The vision tower of a policy: what it makes of images, and how it learns.

Features are computed once for all micro-batches of an update, without a gradient. A frozen tower's stand in all updates
of a generation batch, and under the reference model.

A tower that is trained looks at an image once more after the micro-batches: its features were leaves of their graphs,
their gradients have been summed there, and one pass carries each sum back through the tower. That is exact, computes a
picture twice an update however many sequences and micro-batches show it, and keeps the activations of one picture.

The images are decoded as the rollout server decodes them, and cut by the checkpoint's own image processor; whether both
sides then compute the same is what the canary finds out.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from transformers import PreTrainedModel

from grpo_proto.images import decode_image

from ..algorithm.image_tokens import ImageInputs, are_places, images_by_key, keys_and_places, names_in
from ..algorithm.sequences import TrainingSequence
from ..errors import RunError
from .family import image_token_of, load_image_processor

BLANK_SIDE = 64
"""Of the picture that a rank looks at while another has more of them, in pixels."""


@dataclass(frozen=True)
class Look:
    """What the tower makes of one image, and its grid, for families that read it."""

    feature_KH: torch.Tensor
    """What stands at its K places, in order."""
    deep_DKH: torch.Tensor | None
    """What is added there behind each of the first D layers, for families that do so (DeepStack)."""
    grid_thw: torch.Tensor | None

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.feature_KH] if self.deep_DKH is None else [self.feature_KH, self.deep_DKH]

    def as_leaves(self) -> "Look":
        """The same in float32, in which gradients are summed."""
        feature_KH, *deep = (tensor.float().requires_grad_() for tensor in self.tensors)
        return Look(feature_KH, deep[0] if deep else None, self.grid_thw)


@dataclass(frozen=True)
class Features:
    """Of one prompt's images, encoded."""

    images: tuple[str, ...]
    looks: list[Look]

    @property
    def num_places(self) -> int:
        return sum(len(look.feature_KH) for look in self.looks)

    def at(self, number_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of these places, counted through all images."""
        deep = [look.deep_DKH for look in self.looks if look.deep_DKH is not None]
        feature_MH = torch.cat([look.feature_KH for look in self.looks])[number_M]
        return feature_MH, torch.cat(deep, dim=1)[:, number_M] if deep else None

    def learnt(self) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """The images that an update has read, and the gradient of what the tower made of each."""
        for image, look in zip(self.images, self.looks, strict=True):
            if look.feature_KH.grad is not None:
                gradients = [tensor.grad for tensor in look.tensors if tensor.grad is not None]
                yield image, gradients


class VisionTower:
    """The tower of a policy, and the processor of its checkpoint, which is loaded for the first image."""

    def __init__(
        self,
        model: PreTrainedModel,
        name_or_path: str,
        *,
        image_token_id: int,
        device: torch.device,
        sharded: bool,
        is_trained: bool = False,
    ):
        """`sharded`: under ZeRO-3 every pass through the tower is a collective."""
        self.image_token_id, self.device, self.is_trained = image_token_id, device, is_trained
        self._model, self._name_or_path, self._sharded = model, name_or_path, sharded
        self._features: dict[int, Features] = {}
        self._shown: frozenset[int] = frozenset()
        """Of the last call of `see` that had images."""
        self.reads = set(inspect.signature(model.get_image_features).parameters)
        self._rope_index: Any = getattr(getattr(model, model.base_model_prefix, None), "get_rope_index", None)

    @classmethod
    def of(
        cls, model: PreTrainedModel, name_or_path: str, *, device: torch.device, sharded: bool, is_trained: bool = False
    ) -> Self | None:
        """None for a model whose images are not trained on."""
        token_id = image_token_of(model.config)
        if token_id is None:
            return None
        return cls(model, name_or_path, image_token_id=token_id, device=device, sharded=sharded, is_trained=is_trained)

    @cached_property
    def processor(self) -> Any:
        return load_image_processor(self._name_or_path)

    def see(self, sequences: Sequence[TrainingSequence]) -> Mapping[int, tuple[str, ...]]:
        """Look at the images of all sequences of this rank, and return them by their key.

        Images of the call before are not looked at again, whose sequences may still be trained on: the canary's come
        between. A collective when the model is sharded. Raises RunError for a sequence with other places than the tower
        has features of its images.
        """
        prompts = images_by_key([one.token_ids_L for one in sequences], [one.images for one in sequences])
        self._look_at(prompts, keep=self._shown.union(prompts) if prompts else set(self._features))
        self._shown = frozenset(prompts) or self._shown
        for one in sequences:
            self._check_places(one)
        return prompts

    def look_again(self, images: Iterable[ImageInputs | None]) -> None:
        """Look at those images of micro-batches of which this tower has no features, as after an update of its weights.
        A collective when the model is sharded."""
        shown = [one for one in images if one is not None]
        needed = {key: one.prompts[key] for one in shown for key in one.keys}
        self._look_at(needed, keep=self._shown.union(*(one.prompts for one in shown)))

    def features_at(self, names_M: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what stands at places with these names [M, H], and behind the first D layers [D, M, H] or None."""
        keys_M, number_M = keys_and_places(names_M)
        ends = [0, *(np.flatnonzero(np.diff(keys_M)) + 1), len(keys_M)]
        found = [
            self._features[int(keys_M[start])].at(torch.from_numpy(number_M[start:end]).to(self.device))
            for start, end in pairwise(ends)
        ]
        deep = [deep_DMH for _, deep_DMH in found if deep_DMH is not None]
        return torch.cat([feature_MH for feature_MH, _ in found]), torch.cat(deep, dim=1) if deep else None

    def features_of(self, images: Sequence[str]) -> Features:
        """Look at the images of one prompt, encoded, without a gradient."""
        with torch.no_grad():
            looks = [self._look(decode_image(one)) for one in images]
        return Features(tuple(images), [look.as_leaves() for look in looks] if self.is_trained else looks)

    def learn(self, backward: Callable[[torch.Tensor], None]) -> None:
        """Carry the gradients that features got in an update back through the tower, as those of the scalars that
        `backward` is given, and forget the features.

        A collective: every rank makes as many passes as the one with most images, whose gradients are reduced with
        theirs.
        """
        learnt = [one for features in self._features.values() for one in features.learnt()]
        passes = self._most_of_ranks(len(learnt))
        for image, gradients in learnt:
            made = self._look(decode_image(image)).tensors
            products = [tensor.float() * gradient for tensor, gradient in zip(made, gradients, strict=True)]
            backward(torch.stack([product.sum() for product in products]).sum())
        for _ in range(passes - len(learnt)):
            backward(self.nothing())
        self.forget()

    def nothing(self) -> torch.Tensor:
        """Return 0 with a graph that gives every parameter of the tower a gradient of 0."""
        return torch.stack([0.0 * tensor.float().sum() for tensor in self._look(_blank()).tensors]).sum()

    def forget(self) -> None:
        """Look at everything again: the weights have changed."""
        self._features.clear()

    @property
    def has_positions(self) -> bool:
        """Whether the family counts positions in time, height and width."""
        return self._rope_index is not None

    def positions(self, token_ids_L: NDArray[np.int64], keys: Sequence[int]) -> NDArray[np.int64]:
        """The model's own positions in time, height and width [3, L] of token ids with names of places, by the grids of
        the images with these keys."""
        grids = [look.grid_thw for key in keys for look in self._features[int(key)].looks if look.grid_thw is not None]
        is_place_L = are_places(token_ids_L)
        ids = torch.from_numpy(np.where(is_place_L, self.image_token_id, token_ids_L))[None]
        kinds = torch.from_numpy(is_place_L.astype(np.int32))[None]
        grid_thw = torch.cat(grids).cpu() if grids else None
        found, _ = self._rope_index(input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=grid_thw)
        in_space: NDArray[np.int64] = found[-3:, 0].numpy()
        return in_space

    def _look_at(self, prompts: Mapping[int, tuple[str, ...]], *, keep: Iterable[int]) -> None:
        """Get the features of `prompts`, and let go of all others but those to `keep`."""
        self._features = {key: self._features[key] for key in keep if key in self._features}
        unseen = {key: images for key, images in prompts.items() if key not in self._features}
        num_images = sum(map(len, unseen.values()))
        passes = self._most_of_ranks(num_images) if self._sharded else num_images
        self._features |= {key: self.features_of(images) for key, images in unseen.items()}
        with torch.no_grad():
            for _ in range(passes - num_images):
                self._look(_blank())

    def _most_of_ranks(self, num_images: int) -> int:
        if dist.is_initialized() and dist.get_world_size() > 1:
            most = torch.tensor(num_images, device=self.device)
            dist.all_reduce(most, dist.ReduceOp.MAX)
            return int(most)
        return num_images

    def _look(self, image: Any) -> Look:
        """One image through the processor and the tower."""
        made = self.processor(images=[image], return_tensors="pt")
        inputs = {name: value.to(self.device) for name, value in made.items() if name in self.reads}
        inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        output = self._model.get_image_features(**inputs, return_dict=True)
        deep = getattr(output, "deepstack_features", None)
        return Look(
            _joined(output.pooler_output),
            None if deep is None else torch.stack([_joined(layer) for layer in deep]),
            inputs.get("image_grid_thw"),
        )

    def _check_places(self, sequence: TrainingSequence) -> None:
        """A row may lack the last of them: those of images that an episode shows behind its last trained turn."""
        keys_M, number_M = keys_and_places(names_in(sequence.token_ids_L))
        begins = np.flatnonzero(number_M == 0)
        for start, end in pairwise([*begins, len(number_M)]):
            count = self._features[int(keys_M[start])].num_places
            if end - start == count:
                continue
            raise RunError(
                f"a prompt has {end - start} image tokens, and the trainer's image processor makes {count} of its "
                "images",
                hint="use the same checkpoint and the same libraries on both sides, and no --mm-processor-kwargs on "
                "the rollout servers",
            )


def _joined(features: Any) -> torch.Tensor:
    """One row for each place, whether the tower gives a list, one entry an image or tile, or one tensor."""
    joined = torch.cat([one.flatten(0, -2) for one in features]) if isinstance(features, list | tuple) else features
    return joined.flatten(0, -2)


def _blank() -> Any:
    from PIL import Image

    return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))
