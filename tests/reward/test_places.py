"""Where an answer stands, alike for all rewards: behind the thought, and nowhere in one that never ends."""

from collections.abc import Callable
from typing import Any

import pytest

from grpo_reward.author import Score
from grpo_reward.rewards.accuracy import accuracy
from grpo_reward.rewards.code import Example, code
from grpo_reward.rewards.cosine import cosine
from grpo_reward.rewards.countdown import countdown
from grpo_reward.rewards.exact_match import exact_match
from grpo_reward.rewards.format import format_reward
from grpo_reward.rewards.json_schema import json_schema
from grpo_reward.rewards.length import length
from grpo_reward.rewards.multiple_choice import multiple_choice
from grpo_reward.rewards.react_format import react_format
from grpo_reward.rewards.tool_call import Call, tool_call

Paid = Callable[..., float]
PROGRAM = "```python\nprint(7)\n```"
TOOL = '<tool_call>{"name": "seven"}</tool_call>'


def paid(reward: Callable[..., Score | float], **columns: Any) -> Paid:
    def score(completion: str, **more: Any) -> float:
        result = reward(completion, **columns, **more)
        found = result.score if isinstance(result, Score) else result
        assert found is not None
        return found

    return score


REWARDS: dict[str, tuple[Paid, str, str]] = {
    "accuracy": (paid(accuracy, solution="7"), "7", "8"),
    "cosine": (
        paid(cosine, solution="7", max_len=10**6, unit="characters", max_len_value_correct=1, min_len_value_wrong=0),
        "7",
        "8",
    ),
    "exact_match": (paid(exact_match, solution="7"), "7", "8"),
    "multiple_choice": (paid(multiple_choice, solution="B"), "B", "C"),
    "countdown": (paid(countdown, nums=[3, 4], target=7), "3+4", "3*4"),
    "json_schema": (paid(json_schema, schema={"const": 7}), "7", "8"),
    "code": (paid(code, tests=[Example(input="", output="7")]), PROGRAM, PROGRAM.replace("7", "8")),
}
"""A reward, its right answer and a wrong one."""


@pytest.mark.processes
@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize(
    "thought",
    [
        "<think>The user wants the answer in <answer> </answer> tags. 3+4=7.</think>",
        "<think>I should put it in <answer> tags. 3+4=7.</think>\n",
        "I should close it with </answer>.</think>\n",
        "<think>First <answer>{wrong}</answer>? No.</think>",
        "<think>First <answer>{right}</answer>? No.</think>",
    ],
)
def test_the_block_behind_the_thought_counts(name: str, thought: str):
    score, right, wrong = REWARDS[name]
    thought = thought.replace("{right}", right).replace("{wrong}", wrong)
    assert score(f"{thought}<answer>{right}</answer>") == 1.0
    assert score(f"{thought}<answer>{wrong}</answer>") == 0.0
    if name != "cosine":
        assert score(f"{thought}<answer>{right}", truncated=False) == 1.0


@pytest.mark.parametrize("name", ["accuracy", "exact_match", "multiple_choice", "countdown", "json_schema"])
def test_without_a_block_behind_the_thought_the_first_one_counts(name: str):
    score, right, wrong = REWARDS[name]
    assert score(f"<think>x<answer>{right}</answer></think>") == 1.0
    assert score(f"<answer>{wrong}</answer><answer>{right}</answer>") == 0.0
    assert score(f"<answer>the tag </think></answer><answer>{right}</answer>") == 1.0


@pytest.mark.parametrize("before", ["<think>q</think>\n\n", "x</think>\n\n", ""])
def test_without_a_block_a_text_stands_behind_the_thought(before: str):
    assert exact_match(f"{before}Paris", solution="Paris") == 1.0
    assert exact_match(f"{before}I think Paris", solution="Paris") == 0.0
    assert exact_match(f"{before}Paris", solution="Paris", whole=True) == float(not before)
    assert exact_match(f"{before}Paris", solution=f"{before}Paris", whole=True) == 1.0
    assert exact_match(f"Paris{before}", solution="Paris") == float(not before)


UNFINISHED: dict[str, tuple[Paid, str]] = {
    "accuracy": (REWARDS["accuracy"][0], "Perhaps the final answer is 7. I should"),
    "cosine": (REWARDS["cosine"][0], "Perhaps the final answer is 7. I should"),
    "exact_match": (REWARDS["exact_match"][0], "7"),
    "multiple_choice": (REWARDS["multiple_choice"][0], "At first sight the answer is B. But wait, I should check"),
    "json_schema": (REWARDS["json_schema"][0], "7"),
    "code": (REWARDS["code"][0], f"Let me try\n{PROGRAM}\nHmm, does that"),
    "tool_call": (paid(tool_call, tool_calls=[Call(name="seven")]), f"I could say {TOOL} then"),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", UNFINISHED)
def test_a_thought_that_the_prompt_has_opened_and_nobody_ends_is_no_answer(name: str):
    score, thought = UNFINISHED[name]
    assert score(thought) == 1.0  # nobody could tell
    for opening in ("<think>", "<think>\n"):
        assert score(thought, prefix=opening) == score(opening + thought) == 0.0
    answer = TOOL if name == "tool_call" else f"<answer>{REWARDS[name][1]}</answer>"
    assert score(f"{thought}</think>{answer}", prefix="<think>") == 1.0


def test_length_and_react_format_take_a_prefix():
    def shares(**more: str) -> list[float | None]:
        texts = ["Perhaps the final answer is 7.", "It is.</think>It is, so the final answer is 7."]
        scores = length(
            texts, prompts=["", ""], completion_ids=[None, None], solution=["7", "7"], unit="characters", **more
        )
        return [score.score for score in scores]

    assert (shares(), shares(prefix="<think>")) == ([0.5, -0.5], [0.0, -0.5])
    action = "I look.</think>Action: look\nAction Input: {}"
    assert (react_format(action), react_format(action, prefix="<think>\n")) == (0.0, 1.0)
    assert react_format("<think>" + action, prefix="<think>") == format_reward("a", prefix="<think>") == 0.0
