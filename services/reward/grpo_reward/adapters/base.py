"""What an adapter is, and what its answer is made of."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from grpo_proto import ScoreResponse, ScoreSample
from grpo_proto.nesting import MAX_LEVELS, nesting
from grpo_proto.totals import may_pass

from ..answers.gold_text import text_of_boolean
from ..faults import printable
from ..reading import check_number_of_values
from ..refusal import Refusal
from .choice import Choice
from .label import LabelError, columns_of, is_object_text

log = logging.getLogger("grpo_reward.adapters")

_NO_NULL = "this protocol has no null; with ?unscorable=NUMBER a score that is unscorable is NUMBER"

BodyT = TypeVar("BodyT", bound="PeerRequest")


class PeerRequest(BaseModel):
    """A message that is not ours to define: a field we do not know is the peer's business."""

    model_config = ConfigDict(frozen=True, extra="ignore")


@dataclass(frozen=True)
class Scored:
    """One sample, every reward with a number: these clients have no null."""

    total: float
    """Σ weight · score."""
    scores: dict[str, float]


@dataclass(frozen=True)
class Adapter(Generic[BodyT]):
    """One route. `samples` and `answer` are the translation; the server does the rest as for `/v1/score`."""

    path: str
    summary: str
    body: type[BodyT]
    answers_with: Any
    """Type of the answer, for the OpenAPI document."""
    samples: Callable[[BodyT, Choice], list[ScoreSample]]
    answer: Callable[[BodyT, Choice, list[Scored]], Any]
    example: dict[str, Any]
    example_rewards: str
    many: str | None = None
    """The field of `body` whose list has an entry for each sample; None when a request is one sample."""
    options: dict[str, str] = field(default_factory=dict)
    """Options in the query that only this route has, with their description."""


def labelled_columns(
    labels: Sequence[Any], choice: Choice, needed: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The label rule for the samples of a request; `needed` instead of all columns that its rewards need.

    Labels that are JSON are read on the event loop, as the body is: together they may hold what it may. Raises Refusal
    413 for more, and 422 for a label that cannot fill the columns, a number or a list in place of a text too: every
    try would fail at it. A boolean is the text that readers of CSV files made it of.
    """
    check_number_of_values(b"".join(label.encode(errors="replace") for label in labels if is_object_text(label)))
    columns = []
    for position, label in enumerate(labels):
        try:
            columns.append(columns_of(label, choice.columns if needed is None else needed))
        except LabelError as error:
            raise Refusal(422, error.kind, f"the label of samples[{position}]: {error}") from None
        for name, value in columns[-1].items():
            if name not in choice.text_columns or nesting(value) > MAX_LEVELS:  # which is refused later
                continue
            columns[-1][name] = text_of_boolean(value)
            if not isinstance(columns[-1][name], str | None):
                what = (
                    "a number"
                    if isinstance(value, int | float)
                    else "a list"
                    if isinstance(value, list)
                    else "an object"
                )
                message = f"the label of samples[{position}] fills the column {name} with {what}, and it is text"
                text = json.dumps(str(value) if isinstance(value, int | float) else json.dumps(value))
                raise Refusal(422, "invalid_label", message, hint=f"send it as text: {text:.200}")
    return columns


def scored(response: ScoreResponse, choice: Choice) -> list[Scored]:
    """Every sample with every score. Raises Refusal: 422 when one is unscorable and the query says nothing of it, 503
    when one broke, which a client may try again.

    A total without the missing score would look like a wrong answer to a client without null.
    The peers log a status but not its body, so the cause is written to the log of this server as well.
    """
    found: list[Scored] = []
    missing: list[str] = []
    broke = False
    hint = "choose smaller weights"
    for position, result in enumerate(response.results):
        scores: dict[str, float] = {}
        for name, reward in result.rewards.items():
            score = choice.unscorable if reward.status == "unscorable" else reward.score
            if score is not None:
                scores[name] = score
            else:
                detail = f" ({reward.detail})" if reward.detail else ""
                missing.append(f"samples[{position}]: {name} is {reward.status}{detail}")
                broke = broke or may_pass(reward)
                hint = _NO_NULL if reward.status == "unscorable" else "send the column as the reward takes it"
        if len(scores) < len(choice.rewards):
            continue
        total = sum(spec.weight * scores[spec.name] for spec in choice.rewards)
        if not math.isfinite(total):
            missing.append(f"samples[{position}]: the weighted sum of its scores is not finite")
        found.append(Scored(total, scores))
    if missing:
        rest = f" (and {len(missing) - 3} more)" if len(missing) > 3 else ""
        message = "no score for " + "; ".join(missing[:3]) + rest
        log.warning("%s", printable(message))
        if broke:
            raise Refusal(503, "no_score", message, hint="something broke, three times: try again", retryable=True)
        raise Refusal(422, "no_score", message, hint=hint)
    return found
