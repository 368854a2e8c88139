"""Which of the model's parameters a run trains, where its file freezes some (`model.freeze_parameters_regex`)."""

import difflib
import logging
import math
import re
from collections.abc import Iterable, Sequence

from torch import nn

from grpo_proto.checkpoint_layout import shape_of

from ..config.model import ModelConfig
from ..errors import UsageError

log = logging.getLogger(__name__)


def trained_parameters(model: nn.Module, config: ModelConfig) -> list[nn.Parameter]:
    """Return the parameters that a run trains: of those that have a gradient, all that `config` does not freeze.

    Names are transformers'. A tied tensor has several, and one that matches is enough: whoever freezes the embedding
    of such a model freezes its output head.

    Raises UsageError when a pattern matches nothing, and when nothing is left to train.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    frozen = _matched(config.freeze_parameters_regex, named, "freeze_parameters_regex")
    frozen -= _matched(config.trainable_parameters_regex, trainable, "trainable_parameters_regex")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in frozen]
    if not trained:
        raise UsageError(
            "model.freeze_parameters_regex freezes every parameter: nothing is left to train",
            hint="name those to train in model.trainable_parameters_regex",
        )
    of_text = text_parameters(model).intersection(map(id, trained)) if config.train_vision_tower else set()
    if config.train_vision_tower and len(of_text) in (0, len(trained)):
        raise UsageError(
            "model.train_vision_tower is true, and model.freeze_parameters_regex freezes all of "
            + ("the tower" if of_text else "the decoder, through which the tower would learn"),
            hint="freeze less of it, or leave train_vision_tower out",
        )
    return trained


def text_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters of a model's decoder and output head."""
    parts = model.get_decoder(), model.get_output_embeddings()
    return {id(parameter) for part in parts for parameter in part.parameters()}


def freeze_parameters(model: nn.Module, config: ModelConfig) -> None:
    """Freeze all but the `trained_parameters`, and log how many these are.

    A frozen parameter gets no gradient and no state of the optimizer. A push sends it all the same, because a server
    may have loaded other weights.
    """
    if config.frozen is None:
        return
    trained = trained_parameters(model, config)
    model.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)
    of_all, of_trained = (
        [math.prod(shape_of(parameter)) for parameter in parameters] for parameters in (model.parameters(), trained)
    )
    log.info(
        "trained are %d of the model's %d parameters, %.1f %% of its numbers",
        len(of_trained),
        len(of_all),
        100.0 * sum(of_trained) / sum(of_all),
    )


def _matched(patterns: Sequence[str], named: Sequence[tuple[str, nn.Parameter]], setting: str) -> set[int]:
    """Return the ids of the parameters with a name that one of `patterns` is found in."""
    found: set[int] = set()
    for pattern in patterns:
        matched = {id(parameter) for name, parameter in named if re.search(pattern, name)}
        if not matched:
            raise UsageError(
                f"model.{setting} {pattern!r} matches none of the model's parameters",
                hint=f"near it are {', '.join(_nearest(pattern, (name for name, _ in named)))}",
            )
        found |= matched
    return found


def _nearest(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the three names nearest to `pattern`, of alike ones in several layers the first."""
    first_of_alike: dict[str, str] = {}
    for name in names:
        first_of_alike.setdefault(re.sub(r"\d+", "0", name), name)
    plain = re.sub(r"[\\^$]", "", pattern)
    return difflib.get_close_matches(plain, first_of_alike.values(), n=3, cutoff=0.0)
