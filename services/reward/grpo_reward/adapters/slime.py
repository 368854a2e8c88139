"""slime's remote reward model: `--rm-type remote_rm --rm-url http://HOST:8001/rm?rewards=…`.

Its client sends one sample a request and takes any JSON for the reward: a number, or with `--reward-key KEY` an object.
It makes a tensor of the numbers, so that a null would stop the run.
"""

from typing import Any

from grpo_proto import ScoreSample

from ..refusal import Refusal
from .base import Adapter, PeerRequest, Scored, labelled_columns
from .choice import Choice
from .text import plain_prompt


class SlimeRequest(PeerRequest):
    """slime → reward server: one sample. `prompt` is text, or messages when no chat template was applied."""

    prompt: str | list[Any] | None = None
    response: str
    label: Any = None


def samples(body: SlimeRequest, choice: Choice) -> list[ScoreSample]:
    (columns,) = labelled_columns([body.label], choice)
    sample = {"prompt": plain_prompt(body.prompt), "completion": body.response, "columns": columns}
    return [ScoreSample.model_validate(sample)]


def answer(body: SlimeRequest, choice: Choice, found: list[Scored]) -> float | dict[str, float]:
    """The weighted sum; with `components=true` an object, `reward` for the sum and every reward by its name."""
    wanted = choice.own.get("components", "false")
    if wanted not in ("true", "false"):
        raise Refusal(422, "invalid_option", f"components is {wanted!r}, not true or false")
    sample = found[0]
    return {**sample.scores, "reward": sample.total} if wanted == "true" else sample.total


ADAPTER = Adapter(
    path="/rm",
    summary="slime's remote reward model: one sample, one number.",
    body=SlimeRequest,
    answers_with=float | dict[str, float],
    samples=samples,
    answer=answer,
    example={"prompt": "What is 1/2 + 1/4?", "response": "<answer>3/4</answer>", "label": "0.75"},
    example_rewards="accuracy",
    options={"components": "`true` answers with an object, for `--reward-key reward`; `false` with a number."},
)
