import pytest

from grpo_reward.rewards.format import format_reward

RIGHT = "<think>why</think><answer>42</answer>"


@pytest.mark.parametrize("text", [RIGHT, "<think>\nwhy\n</think>\n<answer>\n42\n</answer>", f"\n {RIGHT} \n\n"])
def test_right(text):
    assert format_reward(text) == 1.0
    assert format_reward(text, require_think=False) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "<think>why</think>42",
        "<think>why</think> so <answer>42</answer>",
        f"Well: {RIGHT}",
        f"{RIGHT} That is it.",
        f"{RIGHT}\nThat is it.",  # the expression of the walk-throughs takes this one
        f"{RIGHT}{RIGHT}",
        f"<think>why</think>{RIGHT}",
        f"{RIGHT}<answer>43</answer>",
        "<think>why</think><answer><answer>42</answer></answer>",
        "<think><think>why</think></think><answer>42</answer>",
        "<think>why<answer>42</answer>",
        "why</think><answer>42</answer>",
        "<answer>42</answer><think>why</think>",
        "<think><answer>42</answer></think>",
        "<think>why<answer>42</answer></think>",
        "<think>why</think><answer>42",
        "<think>why</think></answer>42<answer>",
        "</think>why<think><answer>42</answer>",
        "<think></think><answer>42</answer>",
        "<think> \n </think><answer>42</answer>",
        "<think>why</think><answer></answer>",
        "<think>why</think><answer> </answer>",
        "<THINK>why</THINK><ANSWER>42</ANSWER>",
        "<think>why</think><answer>4<think>2</answer>",
        "<think>why</think><answer>4<think>x</think>2</answer>",
    ],
)
def test_wrong(text):
    assert format_reward(text) == 0.0
    assert format_reward(text, require_think=False) == 0.0


def test_the_think_block_may_be_optional():
    assert format_reward("<answer>42</answer>") == 0.0
    assert format_reward(" <answer>42</answer>\n", require_think=False) == 1.0
    assert format_reward("so <answer>42</answer>", require_think=False) == 0.0


def test_what_the_prompt_has_written_counts():
    assert format_reward("why</think><answer>42</answer>", prefix="<think>") == 1.0
    assert format_reward(RIGHT, prefix="<think>") == 0.0
