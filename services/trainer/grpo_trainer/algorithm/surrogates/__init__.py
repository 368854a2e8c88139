"""Surrogates, one small file each: the loss of each trained token, before its weight.

A surrogate takes the policy's logprobs [N], which carry the gradient, the micro-batch, the settings of the algorithm
and a tally for its metrics, and returns the loss of every token [N], also of an empty micro-batch (N = 0). What it
reads of the micro-batch beyond `old_logprobs_N` it declares with `@reads(…)`. An episode lies whole in one micro-batch,
so sums over an episode (`batch.episode_N`) need nothing more. A user's own is `FILE.py:NAME` in `algorithm.loss`.

What it takes beyond these four arguments are its parameters, with their defaults: `algorithm.params` of the run file
sets them. A setting that only one surrogate reads is such a parameter, and no field of the section.

A surrogate whose loss and gradient are 0 wherever the advantage is 0 declares that, too: samples of advantage 0 are
then not computed. So does one in which the loss of a token depends on no logprob but its own: it is then also called
with a few of a micro-batch's tokens, for their gradients, and its metrics of these calls are dropped.

A file has the name that a run file has for its surrogate; dppo.py has both that begin with its name.
reads.py         what a surrogate declares that it reads
own.py           a user's own: what it raises or returns is named, before the run begins where possible
ratios.py        importance ratios of tokens and of episodes
clip_metrics.py  what a clip cut off
"""

from collections.abc import Callable

import torch

from ...config.algorithm import AlgorithmConfig
from ...extension import named
from ...parameters import with_parameters
from ..reduction import Tally
from ..sequences import MicroBatch
from .cispo import cispo
from .clipped import clipped
from .decoupled import decoupled
from .dppo import dppo_kl, dppo_tv
from .fipo import fipo
from .gmpo import gmpo
from .own import guarded
from .reads import Reads, reads, reads_of
from .reinforce import reinforce
from .sapo import sapo
from .vespo import vespo

Surrogate = Callable[[torch.Tensor, MicroBatch, AlgorithmConfig, Tally], torch.Tensor]
CALLED_WITH = ("logprobs_N", "batch", "algorithm", "tally")

SURROGATES: dict[str, Surrogate] = {
    "clipped": clipped,
    "decoupled": decoupled,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "fipo": fipo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "vespo": vespo,
    "reinforce": reinforce,
}

__all__ = ["SURROGATES", "Reads", "Surrogate", "reads", "reads_of", "surrogate_of"]


def surrogate_of(algorithm: AlgorithmConfig) -> Surrogate:
    """Look up the surrogate that the run file names, with its parameters.

    Raises UsageError for an unknown name, and for parameters that it does not take.
    """
    name = algorithm.surrogate_name
    found = named(name, SURROGATES, setting="algorithm.loss")
    surrogate = with_parameters(
        found,
        algorithm.params,
        called_with=CALLED_WITH,
        name=name,
        setting="algorithm.loss",
        key="algorithm.params",
    )
    return surrogate if name in SURROGATES else guarded(surrogate, name)
