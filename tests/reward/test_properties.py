"""What holds for every reward and any text: a finite score in its range, the same one alone and in any company."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_proto import ScoreRequest
from grpo_proto.messages.reward import ScoreResult
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "\\boxed{", "}", "{", "(", ")", "[",
    "]", "```python\n", "```", "####", "Action:", "Action Input:", "First,", "Step 1:", "\n", " ", "1", "44", "19",
    "35",
    "+", "-", "*", "/", "=", "**", "9", ".", ",", "x", "the", "答案", "ответ", "A", "(B)",
    "\x00", "\u202e", "\u0661",
    "$", "\\frac{1}{2}", '"name"', ":", "null", "NaN",
]  # fmt: skip
text = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
# Reward → params, and the range of its score.
RANGES: dict[str, tuple[dict[str, Any], float, float]] = {
    "accuracy": ({}, 0, 1),
    "cosine": ({"max_len": 100, "unit": "characters"}, -0.5, 1),
    "countdown": ({}, 0, 1),
    "exact_match": ({}, 0, 1),
    "format": ({}, 0, 1),
    "gsm8k": ({}, 0, 1),
    "json_schema": ({"schema": {"type": "object"}}, 0, 1),
    "length": ({"unit": "characters"}, -0.5, 0.5),
    "math_boxed": ({}, 0, 1),
    "min_length": ({"min_chars": 10}, 0, 1),
    "multiple_choice": ({}, 0, 1),
    "react_format": ({}, 0, 1),
    "reasoning_steps": ({}, 0, 1),
    "regex": ({"pattern": "[0-9]+"}, 0, 1),
    "repetition": ({}, -1, 0),
    "soft_overlong": ({"max_len": 10, "cache_len": 5}, -1, 0),
    "tag_count": ({}, 0, 1),
    "think_language": ({}, 0, 1),
    "tool_call": ({}, 0, 1),
}
ELSEWHERE = {"code", "judge", "reward_model"}
"""They start processes or call servers; their own tests have their texts."""
COLUMNS: dict[str, dict[str, Any]] = {
    "code": {"tests": [{"input": "", "output": "44"}, "assert answer == 44"]},
    "countdown": {"nums": [44, 19, 35], "target": 98},
    "exact_match": {"solution": "44", "answer": "44"},
    "gsm8k": {"answer": "#### 44", "solution": "44"},
    "multiple_choice": {"solution": "B", "answer": "B"},
    "tool_call": {"tool_calls": []},
}
"""Of the others: a solution."""
LONG = {
    "grouped": "1" + ",000" * 22_000,
    "a fraction": "1" + ",000" * 22_000 + "/7",
    "grouped in twos": "1" + ",00" * 40_000 + ",000",
    "digits": "7" * 70_000,
    "decimals": "0." + "7" * 70_000,
    "words": "B is the answer, or " * 5000,
    "control characters": "\x01" * 70_000,
    "quotes": "\"'" * 35_000,
    "backslashes": "\\" * 70_000,
    "beyond the basic plane": "\U0001d7d7" * 70_000,
    "separators": "\u2028\x85\x1c" * 23_000,
    "brackets": "([{" * 23_000,
}
"""Of JSON they take up to twelve times their characters."""
AROUND = [
    ("", ""), ("<think>", "</think>"), ("<think>a</think><answer>", "</answer>"), ("<answer>44 + 19 + 35", "</answer>"),
    ("\\boxed{", "}"), ("<answer>\\boxed{", "}</answer>"), ("#### ", ""), ("#### -", "."), ("#### 44 ", ""), ("[", "]"),
    ("<tool_call>", "</tool_call>"), ('<tool_call>{"name": "', '"}</tool_call>'), ('{"', '": 1}'),
    ("```python\nraise ValueError('''", "''')\n```"), ("```python\nprint('''", "''')\n```"), ("```json\n", "\n```"),
]  # fmt: skip
OF_ACCURACY = {"cosine", "length"}
"""What they read of a text, besides its length, is read by `accuracy`."""
Score = Callable[[str, list[str]], list[ScoreResult]]
quick = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def score_request(name: str, texts: list[str]) -> ScoreRequest:
    params = RANGES[name][0] if name in RANGES else {}
    samples = [
        {
            "completion": text,
            "columns": COLUMNS.get(name, {"solution": "$44$"}),
            "completion_token_ids": list(range(len(text))) if name == "soft_overlong" else None,
            "prompt": "?",
        }
        for text in texts
    ]
    return ScoreRequest.model_validate({"rewards": [{"name": name, "params": params}], "samples": samples})


@pytest.fixture(scope="module")
def score() -> Iterator[Score]:
    """Score these texts by this reward. One event loop serves all of them: making one takes longer than a score."""
    scoring = Scoring(InlineExecutor(), Metrics())
    with asyncio.Runner() as runner:
        yield lambda name, texts: runner.run(scoring.score(score_request(name, texts))).results


def test_no_reward_is_forgotten():
    assert set(RANGES) | ELSEWHERE == set(InlineExecutor().rewards)


@pytest.mark.parametrize("name", RANGES)
def test_any_text_has_a_finite_score_in_the_range_of_the_reward(name: str, score: Score):
    _, low, high = RANGES[name]

    @quick
    @given(text=text)
    def holds(text: str) -> None:
        (result,) = score(name, [text])
        found = result.rewards[name]
        if name == "think_language" and found.status == "unscorable":
            return  # a text without a word
        assert found.status == "ok", found
        assert found.score is not None
        assert low <= found.score <= high

    holds()


@pytest.mark.processes
@pytest.mark.parametrize("name", [*RANGES, "code"])
def test_no_long_text_makes_an_error(name: str, score: Score):
    """What it makes a reward log, too, is within the limits."""
    around = AROUND[:3] if name in OF_ACCURACY else AROUND
    texts = {(shape, before): f"{before}{long}{after}" for shape, long in LONG.items() for before, after in around} | {
        (shape, "JSON"): json.dumps(long) for shape, long in LONG.items()
    }
    results = score(name, list(texts.values()))
    found = zip(texts, (result.rewards[name] for result in results), strict=True)
    assert {which: score.detail for which, score in found if score.status == "error"} == {}


@pytest.mark.parametrize("name", sorted(set(RANGES) - {"length"}))
def test_a_score_does_not_depend_on_the_company(name: str, score: Score):
    @settings(quick, max_examples=30)  # each has several texts
    @given(texts=st.lists(text, min_size=2, max_size=6), chance=st.randoms())
    def holds(texts: list[str], chance: Any) -> None:
        alone = {one: score(name, [one])[0].rewards[name] for one in texts}
        chance.shuffle(texts)
        together = score(name, texts)
        assert [result.rewards[name] for result in together] == [alone[text] for text in texts]

    holds()
