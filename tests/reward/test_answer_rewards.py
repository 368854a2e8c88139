"""The rewards that compare an answer with a gold one."""

import pytest

from grpo_reward.rewards.exact_match import exact_match
from grpo_reward.rewards.gsm8k import gsm8k
from grpo_reward.rewards.math_boxed import last_box, math_boxed
from grpo_reward.rewards.multiple_choice import multiple_choice
from grpo_reward.rewards.tool_call import tool_call


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("so 6 * 3 = 18\n#### 18", "She sells 6 * 3.\n#### 18", 1.0),
        ("#### $1,234.00.", "#### 1234", 1.0),
        ("#### -5", -5, 1.0),
        ("#### 17\n#### 18", "18", 1.0),
        ("#### 18\n#### 17", "18", 0.0),
        ("the answer is 18", "18", 0.0),
        ("####", "18", 0.0),
        ("#### 180", "18", 0.0),
        ("#### 1e9", "1000000000", 0.0),
        ("", "18", 0.0),
    ],
)
def test_gsm8k(text, answer, score):
    assert gsm8k(text, answer=answer).score == score


def test_gsm8k_without_its_mark():
    assert gsm8k("3 boxes of 6 are 18.", answer="18", strict=False).score == 1.0
    assert gsm8k("18 is 3 boxes of 6", answer="18", strict=False).score == 0.0
    assert gsm8k("none", answer="18", strict=False).score == 0.0


def test_gsm8k_without_a_gold_number():
    assert gsm8k("#### 18", answer="#### none").score is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"\boxed{\frac{1}{2}}", 1.0),
        (r"\boxed{3} no, \boxed{0.5}", 1.0),
        (r"\boxed{0.5} no, \boxed{3}", 0.0),
        (r"\boxed{0.5", 0.0),
        (r"\boxed{}", 0.0),
        ("0.5", 0.0),
        ("<answer>0.5</answer>", 0.0),
    ],
)
def test_math_boxed(text, score):
    assert math_boxed(text, solution=r"$\frac{1}{2}$").score == score


def test_math_boxed_without_a_gold_answer():
    assert math_boxed(r"\boxed{1}", solution="see above").score is None


def test_the_last_box_is_read_whole():
    assert last_box(r"\boxed{a} \boxed{\{b\}{c}} d}") == r"\{b\}{c}"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>**B**</answer>", 1.0),
        ("The answer is **B**.", 1.0),
        ("\\boxed{\\text{B}}", 1.0),
        ("\\boxed{\\textbf{(B)}}", 1.0),
        ("<answer>$B$</answer>", 1.0),
        ("<answer>**A**</answer>", 0.0),
        ("<answer>B</answer>", 1.0),
        ("<answer> (b) Paris </answer>", 1.0),
        ("<answer>B. Paris</answer>", 1.0),
        ("<answer>A or B</answer>", 0.0),
        ("<answer>Both</answer>", 0.0),
        ("<answer></answer> The answer is B", 0.0),
        (r"\boxed{B}", 1.0),
        ("First I thought the answer is A, but the answer is (B).", 1.0),
        ("The answer is Both", 0.0),
        ("B", 0.0),
    ],
)
def test_multiple_choice(text, score):
    assert multiple_choice(text, solution="B) Paris").score == score


def test_multiple_choice_without_a_gold_letter():
    assert multiple_choice("<answer>B</answer>", solution="Paris").score is None


def test_exact_match():
    assert exact_match("<answer> New\n York </answer>", solution="New York") == 1.0
    assert exact_match("<answer>new york</answer>", solution="New York") == 0.0
    assert exact_match("<answer>new york</answer>", solution="New York", ignore_case=True) == 1.0
    assert exact_match("Zu\u0308rich", solution="Z\u00fcrich") == 1.0
    assert exact_match("<answer>a</answer>", solution="a", whole=True) == 0.0
    assert exact_match("<answer>New York, I say</answer>", solution="New York") == 0.0


WEATHER = '<tool_call>{"name": "weather", "arguments": {"city": "Bern", "days": 3}}</tool_call>'
TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
GOLD = [{"name": "weather", "arguments": {"days": 3.0, "city": "Bern"}}]
BOTH = [*GOLD, {"name": "time"}]


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        (WEATHER, GOLD, 1.0),
        (f"first {TIME} then {WEATHER}", BOTH, 1.0),
        (WEATHER * 2, GOLD, 0.0),
        (WEATHER.replace("3", "4"), GOLD, 0.0),
        (WEATHER.replace("3", "true"), [{"name": "weather", "arguments": {"days": 1, "city": "Bern"}}], 0.0),
        (WEATHER.replace("3", "null"), GOLD, 0.0),
        ("<tool_call>{", GOLD, 0.0),
        ("<tool_call>[]</tool_call>", GOLD, 0.0),
        ("<tool_call>" + "[" * 5000, GOLD, 0.0),
        ("no call", GOLD, 0.0),
        ("no call", [], 1.0),
    ],
)
def test_tool_call(text, gold, score):
    from pydantic import TypeAdapter

    from grpo_reward.rewards.tool_call import Call

    assert tool_call(text, tool_calls=TypeAdapter(list[Call]).validate_python(gold)).score == score


def test_tool_call_options():
    gold = '[{"name": "weather", "arguments": {"days": 3, "city": "Bern"}}, {"name": "time"}]'
    assert tool_call(TIME + WEATHER, tool_calls=gold, ordered=True).score == 0.0
    assert tool_call(WEATHER + TIME, tool_calls=gold, ordered=True).score == 1.0
    other = WEATHER.replace("Bern", "Basel") + TIME
    assert [tool_call(other, tool_calls=gold, compare_arguments=flag).score for flag in (True, False)] == [0.0, 1.0]
    with pytest.raises(ValueError, match="the column tool_calls is no JSON list"):
        tool_call(WEATHER, tool_calls="weather")


@pytest.mark.parametrize(
    ("answer", "completion"), [(0.00001, "#### 0.00001"), (1e16, "#### 10000000000000000"), (18.0, "#### 18")]
)
def test_gsm8k_reads_numbers_of_a_column_as_numbers(answer, completion):
    assert gsm8k(completion, answer=answer).score == 1.0
    assert gsm8k("#### 1", answer=answer).score == 0.0


@pytest.mark.parametrize(
    ("answer", "completion", "score"),
    [
        ("#### -$18", "#### -18", 1.0),
        ("#### -$18", "#### 18", 0.0),
        ("#### 18", "#### -$18", 0.0),
        ("#### 18", "#### \u221218", 0.0),
        ("#### 18", "#### - 18", 0.0),
        ("#### -18", "#### - $18.00", 1.0),
        ("#### $1,800", "#### 1800", 1.0),
    ],
)
def test_gsm8k_keeps_the_sign(answer, completion, score):
    assert gsm8k(completion, answer=answer).score == score
