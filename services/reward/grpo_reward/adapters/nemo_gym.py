"""NeMo-Gym's resources server, the part that verifies: `POST /seed_session`, then `POST /verify`.

An agent of Gym sends a row of its dataset with the model's answer beside it, as OpenAI's Responses interface has it,
and gets all of it back with `reward`. It builds the URL from a host and a port, so that there is no query: what to
score with stands in `--adapter-rewards`.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from grpo_proto import ScoreSample

from ..refusal import Refusal
from .base import Adapter, PeerRequest, Scored, labelled_columns
from .choice import Choice
from .text import assistant_text, plain_prompt

LABEL = "expected_answer"
"""What Gym's own environments call the gold answer."""


class NeMoGymVerifyRequest(PeerRequest):
    """Agent of NeMo-Gym → reward server. Every other field is the task's and becomes a column."""

    model_config = ConfigDict(frozen=True, extra="allow")

    responses_create_params: dict[str, Any] = Field(description="What the model was asked: `input`, `instructions`, …")
    response: dict[str, Any] = Field(description="The answer, as OpenAI's Responses interface gives it.")


class NeMoGymVerified(BaseModel):
    """Reward server → agent of NeMo-Gym: the request, `reward` and every reward by its name."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    reward: float
    reward_components: dict[str, float]


def samples(body: NeMoGymVerifyRequest, choice: Choice) -> list[ScoreSample]:
    """The fields of the task are columns; the label fills one that is needed and not among them.

    Raises Refusal 422 for a response without output: scored as an empty text it would look like a wrong answer.
    """
    task = dict(body.model_extra or {})
    label = task.get(choice.own.get("label", LABEL))
    missing = [column for column in choice.columns if column not in task]
    columns = task | (labelled_columns([label], choice, missing)[0] if missing else {})
    output = body.response.get("output")
    if not isinstance(output, list):
        raise Refusal(422, "invalid_value", "response.output is no list, as OpenAI's Responses interface has it")
    sample = {
        "prompt": _prompt(body.responses_create_params),
        "completion": assistant_text(output),
        "columns": columns,
        "truncated": body.response.get("status") == "incomplete" if "status" in body.response else None,
    }
    return [ScoreSample.model_validate(sample)]


def _prompt(asked: dict[str, Any]) -> str | list[dict[str, str]] | None:
    prompt = plain_prompt(asked.get("input"))
    instructions = asked.get("instructions")
    if not isinstance(instructions, str):
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
    return [{"role": "system", "content": instructions}, *messages]


def answer(body: NeMoGymVerifyRequest, choice: Choice, found: list[Scored]) -> dict[str, Any]:
    """Not `model_dump`, which would copy all of it: the fields are plain JSON already."""
    asked = {"responses_create_params": body.responses_create_params, "response": body.response}
    return {**(body.model_extra or {}), **asked, "reward": found[0].total, "reward_components": found[0].scores}


ADAPTER = Adapter(
    path="/verify",
    summary="NeMo-Gym's verification: the request back, with reward and reward_components.",
    body=NeMoGymVerifyRequest,
    answers_with=NeMoGymVerified,
    samples=samples,
    answer=answer,
    example={
        "responses_create_params": {"input": [{"role": "user", "content": "What is 1/2 + 1/4?"}]},
        "response": {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "output": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "<answer>3/4</answer>", "annotations": []}],
                }
            ],
        },
        "expected_answer": "0.75",
    },
    example_rewards="accuracy",
    options={"label": f"The field of the task that is its label; `{LABEL}` without it."},
)
