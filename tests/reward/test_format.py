import re

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.rewards.format import format_reward

RIGHT = "<think>why</think><answer>42</answer>"


@pytest.mark.parametrize("text", [RIGHT, "<think>\nwhy\n</think>\n<answer>\n42\n</answer>", f"\n {RIGHT} \n\n"])
def test_right(text):
    assert format_reward(text) == 1.0
    assert format_reward(text, require_think=False) == 1.0


WRONG = [
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
]
# Wrong for the text around the blocks alone.
LOOSE = [
    "<think>why</think> so <answer>42</answer>",
    f"Well: {RIGHT}",
    f"{RIGHT} That is it.",
    f"{RIGHT}\nThat is it.",
]


@pytest.mark.parametrize("text", WRONG)
def test_wrong(text):
    assert format_reward(text) == 0.0
    assert format_reward(text, require_think=False) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"\n {RIGHT} \n\n",
        f"Well: {RIGHT}",
        f"{RIGHT} That is it.",
        "<think>why</think> so <answer>42</answer>",
        "Well,\n<think>why</think>\nso\n<answer>42</answer>\nThat is it.\n",
        "4 < 5 <think>3 > 2</think></b><answer><b>42</b></answer>",
    ],
)
def test_loose_takes_text_around_and_between(text):
    assert format_reward(text, strict=False) == 1.0


@pytest.mark.parametrize("text", [text for text in WRONG if text not in LOOSE])
def test_loose_still_wants_each_tag_once_and_in_order_and_no_empty_block(text):
    assert format_reward(text, strict=False) == 0.0


INVISIBLE = [
    "\u200b",
    "\ufeff",
    "\x00",
    "\u2060\u200d",
    "\u00ad",
    "\u202e",
    "\x1b\x7f",
    "\u3000",
    "\u0301",
    "\u3164",
    "\u2800",
    "\U0001d159",
]


@pytest.mark.parametrize("nothing", INVISIBLE, ids=ascii)
@pytest.mark.parametrize("strict", [True, False])
def test_a_block_of_what_nobody_sees_is_empty(nothing, strict):
    assert format_reward(f"<think>{nothing}</think><answer>42</answer>", strict=strict) == 0.0
    assert format_reward(f"<think>why</think><answer>{nothing}</answer>", strict=strict) == 0.0
    assert format_reward(f"<answer>{nothing}</answer>", strict=strict, require_think=False) == 0.0
    assert format_reward(f"<think>w{nothing}</think><answer>{nothing}4</answer>", strict=strict) == 1.0


@pytest.mark.parametrize("something", ["?", "\u2211", "\u7b54", "\U0001f600", "e\u0301", "\u0661", "_"], ids=ascii)
def test_any_letter_digit_symbol_or_mark_says_something(something):
    assert format_reward(f"<think>{something}</think><answer>{something}</answer>") == 1.0


# What each of the expressions that others use says, by running it: ms-swift's, and the R1-Zero walk-through's.
SWIFT = re.compile(r"^<think>.*?</think>\s*<answer>.*?</answer>(?![\s\S])", re.DOTALL | re.MULTILINE)
WALK_THROUGH = re.compile(r"^<think>.*?</think>\s*<answer>.*?</answer>$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "swift", "walk_through", "strict", "loose"),
    [
        (RIGHT, True, True, 1.0, 1.0),
        (f"{RIGHT}\n", False, True, 1.0, 1.0),
        (f"{RIGHT}{RIGHT}", True, True, 0.0, 0.0),
        (f"<think>a</think>{RIGHT}", True, True, 0.0, 0.0),
        ("<think></think><answer></answer>", True, True, 0.0, 0.0),
        ("<think>why</think><answer></answer>", True, True, 0.0, 0.0),
        (f"{RIGHT}\nThat is it.", False, True, 0.0, 1.0),
        (f"{RIGHT} That is it.", False, False, 0.0, 1.0),
        (f"Well:\n{RIGHT}", False, False, 0.0, 1.0),
        ("<think>why</think><answer>4</answer>2</answer>", True, True, 0.0, 0.0),
    ],
)
def test_where_it_differs_from_the_usual_expressions(text, swift, walk_through, strict, loose):
    assert (SWIFT.match(text) is not None, WALK_THROUGH.match(text) is not None) == (swift, walk_through)
    assert (format_reward(text), format_reward(text, strict=False)) == (strict, loose)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 200_000,
        "<think></think>" * 100_000,
        "<answer>a</answer>" * 100_000,
        "<think>" + "\u200b" * 200_000 + "</think><answer>a</answer>",
    ],
)
@processor_time
def test_hostile_texts_take_no_time(text):
    with at_most_cpu_s(1.0):
        assert format_reward(text) == format_reward(text, strict=False) == 0.0


def test_the_think_block_may_be_optional():
    assert format_reward("<answer>42</answer>") == 0.0
    assert format_reward(" <answer>42</answer>\n", require_think=False) == 1.0
    assert format_reward("so <answer>42</answer>", require_think=False) == 0.0
    assert format_reward("so <answer>42</answer>", require_think=False, strict=False) == 1.0
    assert format_reward("so <answer>42</answer>", strict=False) == 0.0
    assert format_reward("<think> </think> so <answer>42</answer>", require_think=False, strict=False) == 0.0
    assert format_reward("<think> so <answer>42</answer>", require_think=False, strict=False) == 0.0


def test_what_the_prompt_has_written_counts():
    assert format_reward("why</think><answer>42</answer>", prefix="<think>") == 1.0
    assert format_reward(RIGHT, prefix="<think>") == 0.0
    assert format_reward("why</think> so <answer>42</answer>", prefix="<think>", strict=False) == 1.0
