"""What a request to an adapter is scored with: the query string of its URL, or the server's `--adapter-rewards`.

`?rewards=accuracy,format:0.1&format.require_think=false&unscorable=0`; blanks, `+` in a query, divide as commas do.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import from_json

from grpo_proto import RewardSpec, ScoreRequest, ScoreSample
from grpo_proto.nesting import MAX_LEVELS, nesting

from ..executors.base import LoadedReward
from ..refusal import Refusal, invalid_request, nearest

OPTIONS = {
    "rewards": "What to score with: names, each with `:weight` if it is not 1. Without it --adapter-rewards counts.",
    "unscorable": "The score of a reward that says unscorable; without it such a request is refused with 422. What "
    "broke is scored again, and then refused with 503.",
    "timeout_s": "Limit for one sample and one reward.",
    "deadline_s": "Limit for the whole request.",
}
"""Options of every adapter. `NAME.PARAM=value` sets a param of a reward beside them."""


@dataclass(frozen=True)
class Choice:
    """The options of one request."""

    rewards: list[RewardSpec]
    columns: list[str]
    """What these rewards need of a sample; a label that is no object fills it when it is one."""
    text_columns: frozenset[str]
    """Those of all that these rewards read which have to be text."""
    unscorable: float | None
    limits: dict[str, str]
    own: dict[str, str]
    """Options that only this adapter has."""

    def score_request(self, samples: list[ScoreSample]) -> ScoreRequest:
        """Raises Refusal: a limit out of bounds, and columns so deep that what they travel in could not be read.

        Bodies of ours have the samples at a depth that bounds them; these have columns that stood elsewhere.
        """
        for position, sample in enumerate(samples):
            if nesting(sample.columns) > MAX_LEVELS:
                message = f"the columns of samples[{position}] have more than {MAX_LEVELS} nested levels"
                raise Refusal(422, "invalid_value", message, hint="columns hold what rewards compare with")
        try:
            return ScoreRequest.model_validate({"rewards": self.rewards, "samples": samples, **self.limits})
        except ValidationError as error:
            raise invalid_request(error, OPTIONS) from None


def choose(
    query: Iterable[tuple[str, str]], default: str, loaded: Mapping[str, LoadedReward], own: Collection[str] = ()
) -> Choice:
    """Read the query. `default` is `--adapter-rewards`, which may go on as a query does: `accuracy&unscorable=0`.

    A query with `rewards` replaces the default; one without adds to it. Raises Refusal 422.
    """
    options = _unique(query)
    if "rewards" not in options and default:
        options = _unique(parse_qsl(f"rewards={default}", keep_blank_values=True)) | options
    names = options.pop("rewards", "")
    if not names:
        raise Refusal(
            422,
            "no_rewards",
            "nothing says which rewards to score with",
            hint="add ?rewards=accuracy,format:0.1 to the URL, or start the server with --adapter-rewards",
        )
    parts = re.split(r"\s*,\s*|\s+", names.strip())
    weights = dict(map(_split_weight, parts))
    if len(weights) < len(parts):
        raise _refused(f"each reward once, not {names}")
    params: dict[str, dict[str, Any]] = {name: {} for name in weights}
    for option in [option for option in options if "." in option]:
        name, _, param = option.partition(".")
        if name not in params:
            raise _refused(f"{option} sets a param of {name}", nearest(name, params))
        params[name][param] = _json_or_text(option, options.pop(option))
    unscorable = _number("unscorable", options.pop("unscorable")) if "unscorable" in options else None
    limits: dict[str, str] = {name: options.pop(name) for name in ("timeout_s", "deadline_s") if name in options}
    for option in options.keys() - set(own):
        raise _refused(f"there is no option {option}", nearest(option, {*OPTIONS, *own}))
    known = [loaded[name] for name in weights if name in loaded]
    return Choice(
        rewards=[RewardSpec(name=name, weight=weight, params=params[name]) for name, weight in weights.items()],
        columns=list(dict.fromkeys(column for reward in known for column in reward.description.columns)),
        text_columns=frozenset(column for reward in known for column in reward.text_columns),
        unscorable=unscorable,
        limits=limits,
        own=options,
    )


def _unique(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for option, value in query:
        if option in options:
            raise _refused(f"{option} came several times", "give each option once; rewards=a,b names several rewards")
        options[option] = value
    return options


def _split_weight(text: str) -> tuple[str, float]:
    """`format:0.1` → the name and the weight."""
    name, colon, weight = text.partition(":")
    if not name:
        raise _refused("rewards has an empty name", "write rewards=accuracy,format:0.1")
    return name, _number(f"the weight of {name}", weight) if colon else 1.0


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _refused(f"{what} is {text!r}, not a finite number")
    return number


def _json_or_text(option: str, text: str) -> Any:
    try:
        value = from_json(text)
    except ValueError:
        return text
    if nesting(value) > MAX_LEVELS:
        raise _refused(f"{option} has more than {MAX_LEVELS} nested levels")
    return value


def _refused(message: str, hint: str | None = None) -> Refusal:
    return Refusal(422, "invalid_option", message, hint=hint)
