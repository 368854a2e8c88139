"""Answers that were paid wrongly somewhere, and their kinds: what a person would pay.

`right`: the score, null for none; `also_right`: others that would do; `why`: where a rule needs a word.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_proto import ScoreRequest
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

Case = dict[str, Any]
CASES: list[Case] = [
    json.loads(line) for line in (Path(__file__).parent / "public_cases.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def scores() -> list[float | None]:
    """Of all cases, in their order; one request for each reward with its params."""
    found: list[float | None] = [None] * len(CASES)
    scoring = Scoring(InlineExecutor(), Metrics())
    requests: dict[str, list[int]] = {}
    for position, case in enumerate(CASES):
        requests.setdefault(json.dumps([case["reward"], case["params"]]), []).append(position)
    with asyncio.Runner() as runner:
        for key, positions in requests.items():
            name, params = json.loads(key)
            samples = [{name: CASES[position][name] for name in ("completion", "columns")} for position in positions]
            request = {"rewards": [{"name": name, "params": params}], "samples": samples}
            response = runner.run(scoring.score(ScoreRequest.model_validate(request)))
            for position, result in zip(positions, response.results, strict=True):
                found[position] = result.rewards[name].score
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}, {CASES[number]['kind']}")
def test_an_answer_is_paid_as_a_person_would_pay_it(number: int, scores: list[float | None]):
    case = CASES[number]
    assert scores[number] in (case["right"], *case.get("also_right", ())), case
