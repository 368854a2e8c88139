"""Image tokens: where a sequence has an image, each place a number of its own.

A prompt has one token for every place of every image, and the tower's features stand there instead of that token's
embedding. By token ids alone two images of one size are equal, and shared prefixes (`prefixes.py`) would compute one of
them for both. So in training a place is named by the images of its prompt and by its number among their places, beyond
every vocabulary: equal images are equal tokens, and all else that compares token ids need not know of images. In an
episode each image is such a prompt by itself, so that sequences share it which then see others.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grpo_proto import RolloutGroup

FIRST_NAME = 1 << 62
PLACE_BITS = 22
"""Up to four million places in a prompt; 40 bits are left for a hash of its images."""
_PLACES = 1 << PLACE_BITS


def key_of(images: Sequence[str]) -> int:
    """Hash the encoded images of a prompt to the first name of its places."""
    return _key([_digest(image) for image in images])


def _digest(image: str) -> bytes:
    return hashlib.blake2b(image.encode(), digest_size=16).digest()


def _key(digests: Iterable[bytes]) -> int:
    digest = hashlib.blake2b(b"".join(digests), digest_size=5).digest()
    return FIRST_NAME + (int.from_bytes(digest) << PLACE_BITS)


def name_places(token_ids: Sequence[int], images: Sequence[str], image_token_id: int) -> list[int]:
    """Return the prompt with a name for each place that has the image token, numbered from its first image to its last.

    `images` are all its images, encoded, in order. Raises ValueError for more places than there are names.
    """
    name = key_of(images)
    last = name + _PLACES
    named = []
    for token_id in token_ids:
        if token_id == image_token_id:
            if name == last:
                raise ValueError(f"the images of a prompt take more than {_PLACES} tokens")
            token_id, name = name, name + 1
        named.append(token_id)
    return named


def segment_tokens(
    token_ids: Sequence[int],
    images: Sequence[str],
    starts: Sequence[int],
    image_token_id: int | None,
    sampled: Iterable[tuple[int, int]],
) -> list[int]:
    """Return a segment of an episode, the places of each image named by it alone.

    Args:
        images: encoded, in order; `starts`: where the tokens of each begin.
        sampled: start and end of what the policy has said, in which the image token is text.

    Raises ValueError for images before a model that sees none, for one without a place, and for places before them.
    """
    if image_token_id is None:
        if images:
            raise ValueError(f"it shows {len(images)} images, and the model of this run sees none")
        return list(token_ids)
    named_L = np.array(token_ids, dtype=np.int64)
    is_place_L = named_L == image_token_id
    for start, end in sampled:
        is_place_L[start:end] = False
    place_M = np.flatnonzero(is_place_L)
    image_M = np.searchsorted(starts, place_M, side="right") - 1
    counts = np.bincount(image_M[image_M >= 0], minlength=len(images))
    in_order = len(starts) == len(images) and list(starts) == sorted(set(starts))
    if not in_order or (image_M < 0).any() or (counts == 0).any():
        raise ValueError(
            f"it shows {len(images)} images, whose tokens begin at {list(starts)}, and its context has {len(place_M)} "
            f"times the model's image token {image_token_id}, from {place_M[:1].tolist()}"
        )
    if counts.max(initial=0) > _PLACES:
        raise ValueError(f"an image takes more than {_PLACES} tokens")
    keys = np.array([key_of([image]) for image in images], dtype=np.int64)
    before = np.cumsum(counts) - counts
    named_L[place_M] = keys[image_M] + np.arange(len(place_M)) - before[image_M]
    tokens: list[int] = named_L.tolist()
    return tokens


def prompt_tokens(group: RolloutGroup, images: Sequence[str], image_token_id: int | None) -> list[int]:
    """Return the prompt as a server has expanded it, the places of its images named."""
    if not images or image_token_id is None:
        return group.prompt_token_ids
    return name_places(group.prompt_token_ids, images, image_token_id)


def are_places(token_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the tokens are places of images."""
    return token_ids >= FIRST_NAME


def keys_and_places(names: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The way back from names: the key of each one's images, and its number among their places."""
    places = names & (_PLACES - 1)
    return names - places, places


def images_by_key(
    tokens_Q: Sequence[NDArray[np.int64]], images_Q: Sequence[tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """The images that the places of sequences are named by, under their keys: all of a sequence, or one of them."""
    used = {int(key) for token_ids_L in tokens_Q for key in np.unique(keys_and_places(names_in(token_ids_L))[0])}
    # Each image is hashed once, however many sequences show it: they are megabytes.
    digests = {image: _digest(image) for image in dict.fromkeys(chain.from_iterable(images_Q))}
    lists = dict.fromkeys([*filter(None, images_Q), *((image,) for image in digests)])
    return {key: images for images in lists if (key := _key(digests[image] for image in images)) in used}


def names_in(token_ids_L: NDArray[np.int64]) -> NDArray[np.int64]:
    """The names of places in a sequence, in order."""
    return token_ids_L[are_places(token_ids_L)]


class Tower(Protocol):
    """What a model sees with: `engine/vision_tower.py`."""

    def features_at(self, names_M: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return what stands at places with these names [M, H], and what is added to the hidden states there behind
        each of the first D layers [D, M, H]; None for families that add nothing (DeepStack does)."""
        ...


@dataclass
class ImageInputs:
    """The images of a micro-batch; M are the places in its rows, one after the other. Their features are asked for in
    the forward pass: those of a tower that is trained change with every update."""

    place_M: Any
    """Where in the rows, in order [M], int64."""
    names_M: NDArray[np.int64]
    """Which place of which image each is."""
    prompts: Mapping[int, tuple[str, ...]]
    """The images of the rank's batch, encoded, by their key."""
    tower: Tower

    @property
    def keys(self) -> list[int]:
        keys: list[int] = np.unique(keys_and_places(self.names_M)[0]).tolist()
        return keys


class Images(Protocol):
    """The images of a rank's sequences, as the tower of its model has seen them: `engine/images.py`."""

    @property
    def image_token_id(self) -> int: ...

    def inputs(self, names_M: NDArray[np.int64], place_M: NDArray[np.int64]) -> ImageInputs:
        """Return what a forward pass needs for these places of the rows."""
        ...

    def positions(self, token_ids_L: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Positions in time, height and width [3, L] of the tokens of a sequence; None where the family counts tokens
        alone."""
        ...
