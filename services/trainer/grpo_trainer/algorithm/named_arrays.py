"""Sequences as flat arrays by name, in which they travel between ranks."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sequences import TrainingSequence

NamedArrays = dict[str, NDArray[Any]]


def to_arrays(sequences: Sequence[TrainingSequence]) -> NamedArrays:
    """`sequences` as flat arrays by name, for the way between ranks: one more field is no new format."""
    named: NamedArrays = {"lengths": np.array([sequence.num_tokens for sequence in sequences], dtype=np.int64)}
    for name in (one.name for one in fields(TrainingSequence)):
        values = [getattr(sequence, name) for sequence in sequences]
        whole = np.concatenate(values) if name.endswith("_L") and values else np.array(values, dtype=np.int64)
        named[name] = whole
    return named


def from_arrays(named: NamedArrays) -> list[TrainingSequence]:
    """The way back from `to_arrays`."""
    ends = np.cumsum(named["lengths"])
    spans = [slice(int(end - length), int(end)) for end, length in zip(ends, named["lengths"], strict=True)]
    per_token = [one.name for one in fields(TrainingSequence) if one.name.endswith("_L")]
    return [
        TrainingSequence(episode=int(episode), update=int(update), **{name: named[name][span] for name in per_token})
        for episode, update, span in zip(named["episode"], named["update"], spans, strict=True)
    ]
