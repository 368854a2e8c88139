"""Normalisers, one small file each: how much a token's loss counts in the loss of its optimizer update.

A normaliser gives one weight to all tokens of an episode, from counts over whole updates (`Counts`), never from how
they are cut into micro-batches. A user's own is `FILE.py:NAME` in `algorithm.normaliser`. What it takes
beyond the counts are parameters, which `algorithm.normaliser_params` sets.

A file has the name that a run file has for its normaliser; counts.py is what all of them count.
"""

from collections.abc import Callable

from ...config.algorithm import AlgorithmConfig
from ...extension import named
from ...parameters import with_parameters
from .bnpo import bnpo
from .counts import Counts
from .dapo import dapo
from .dr_grpo import dr_grpo
from .grpo import grpo
from .luspo import luspo

Normaliser = Callable[[Counts], list[float]]

NORMALISERS: dict[str, Normaliser] = {"grpo": grpo, "bnpo": bnpo, "dr_grpo": dr_grpo, "dapo": dapo, "luspo": luspo}


def normaliser_of(algorithm: AlgorithmConfig) -> Normaliser:
    """Look up the normaliser that the run file names, with its parameters.

    Raises UsageError for an unknown name, and for parameters that it does not take.
    """
    name, setting = algorithm.normaliser_name, "algorithm.normaliser"
    return with_parameters(
        named(name, NORMALISERS, setting=setting),
        algorithm.normaliser_params,
        called_with=("counts",),
        name=name,
        setting=setting,
        key="algorithm.normaliser_params",
    )
