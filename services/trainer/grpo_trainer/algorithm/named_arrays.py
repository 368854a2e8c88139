"""Sequences as flat arrays by name, in which they travel between ranks."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sequences import TrainingSequence

NamedArrays = dict[str, NDArray[Any]]
_ARRAYS = [one.name for one in fields(TrainingSequence) if one.name != "images"]


def to_arrays(sequences: Sequence[TrainingSequence]) -> NamedArrays:
    """`sequences` as flat arrays by name, for the way between ranks: one more field is no new format."""
    named: NamedArrays = {"lengths": np.array([sequence.num_tokens for sequence in sequences], dtype=np.int64)}
    for name in _ARRAYS:
        values = [getattr(sequence, name) for sequence in sequences]
        whole = np.concatenate(values) if name.endswith("_L") and values else np.array(values, dtype=np.int64)
        named[name] = whole
    return named | _image_arrays([sequence.images for sequence in sequences])


def from_arrays(named: NamedArrays) -> list[TrainingSequence]:
    """The way back from `to_arrays`."""
    ends = np.cumsum(named["lengths"])
    spans = [slice(int(end - length), int(end)) for end, length in zip(ends, named["lengths"], strict=True)]
    per_token = [name for name in _ARRAYS if name.endswith("_L")]
    return [
        TrainingSequence(
            episode=int(episode),
            update=int(update),
            images=images,
            **{name: named[name][span] for name in per_token},
        )
        for episode, update, span, images in zip(named["episode"], named["update"], spans, _images(named), strict=True)
    ]


def _image_arrays(images_Q: Sequence[tuple[str, ...]]) -> NamedArrays:
    """The images of a prompt once, however many sequences have that prompt."""
    numbers = {images: number for number, images in enumerate(dict.fromkeys(images_Q))}
    encoded = [image.encode() for images in numbers for image in images]
    return {
        "image_bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "image_lengths": np.array([len(image) for image in encoded], dtype=np.int64),
        "images_of_prompts": np.array([len(images) for images in numbers], dtype=np.int64),
        "prompt_of_sequences": np.array([numbers[images] for images in images_Q], dtype=np.int64),
    }


def _images(named: NamedArrays) -> list[tuple[str, ...]]:
    text = named["image_bytes"].tobytes().decode()
    image_ends, prompt_ends = np.cumsum(named["image_lengths"]), np.cumsum(named["images_of_prompts"])
    encoded = [text[end - length : end] for end, length in zip(image_ends, named["image_lengths"], strict=True)]
    counts = zip(prompt_ends, named["images_of_prompts"], strict=True)
    prompts = [tuple(encoded[end - count : end]) for end, count in counts]
    return [prompts[number] for number in named["prompt_of_sequences"]]
