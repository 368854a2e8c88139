from pathlib import Path

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.rewards.countdown import countdown
from grpo_reward.scorer import checked_params, score_sample


def score(answer: str, nums: list[int] | str = [44, 19, 35], target: int | float | str = 98) -> float | None:  # noqa: B006
    return countdown(f"<think>…</think><answer>{answer}</answer>", nums=nums, target=target).score


@pytest.mark.parametrize(
    ("answer", "nums", "target"),
    [
        ("44 + 19 + 35", [44, 19, 35], 98),
        ("44 + 19 + 35 = 98", [44, 19, 35], 98),
        ("44+19+35=12", [44, 19, 35], 98),  # what stands after "=" is not looked at
        ("(70 - 42) * (30 / 5)", [70, 42, 30, 5], 168),
        ("1/3*3", [1, 3, 3], 1),  # floats would do here, …
        ("1/(1/49*49)", [1, 1, 49, 49], 1),  # … not here
        ("5/(1-5/7)", [5, 1, 5, 7], 17.5),
        ("(1 + 2) / 10", [1, 2, 10], 0.3),  # 0.3 is three tenths
        ("-3+7", [3, 7], 4),
        ("2--(3)", [2, 3], 5),
        ("\t7 ", [7], 7),
        ("7*0", [7, 0], 0),
        ("7 × 3 ÷ 1 − 2 · 1", [7, 3, 1, 2, 1], 19),
        (r"7 \times (3 \div 1) - 2\cdot1", [7, 3, 1, 2, 1], 19),
        ("$7-3$", [7, 3], 4),
        (r"\boxed{7-3}", [7, 3], 4),
        (r"$\boxed{7-3 = 4}$", [7, 3], 4),
        (r"\(\left(7-3\right)\times 2 = 8\)", [7, 3, 2], 8),
        ("7-3", "[7, 3]", "4"),  # as a CSV file has them
        ("7-3", "array([7, 3])", "4"),
        ("1/2", "1 2", "1/2"),
    ],
)
def test_right(answer, nums, target):
    assert score(answer, nums, target) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "44 + 19 + 36", "44 + 19", "44 + 19 + 35 + 35", "44 + 19 + 35 * 1", "98", "",  # other numbers
        "44 - 19 + 35", "19 - 44 - 35",  # other values
        "44 + 19 + 35 =", "= 44 + 19 + 35",
    ],
)  # fmt: skip
def test_wrong(answer):
    assert score(answer) == (1.0 if answer == "44 + 19 + 35 =" else 0.0)


@pytest.mark.parametrize(
    ("answer", "nums", "target"),
    [
        ("7//2", [7, 2], 3),
        ("7 ÷/ 2", [7, 2], 3),
        (r"\timesx 7", [7], 7),
        (r"7 \boxed{-3}", [7, 3], 4),
        ("$7-3", [7, 3], 4),
        ("2**3", [2, 3], 8),
        ("2^3", [2, 3], 1),
        ("7%4", [7, 4], 3),
        ("1.5*2", [1, 5, 2], 3),
        ("1.5*2", [15, 2], 3),
        ("1e2", [1, 2], 100),
        ("1_0", [10], 10),
        ("0x10", [0, 10], 16),
        ("07", [7], 7),
        ("٣+٤", [3, 4], 7),  # Arabic-Indic digits
        ("\uff13+\uff14", [3, 4], 7),  # full-width digits
        ("²+3", [2, 3], 5),
        ("3 +\xa04", [3, 4], 7),
        ("3+\n4", [3, 4], 7),
        ("3+4\n", [3, 4], 7),
        ("3+\r4", [3, 4], 7),
        ("3 4", [3, 4], 34),
        ("3(4)", [3, 4], 12),
        ("(3)(4)", [3, 4], 12),
        ("(3+4", [3, 4], 7),
        ("3+4)", [3, 4], 7),
        ("3+", [3], 3),
        ("()", [3], 3),
        ("3 if 1 else 4", [3, 1, 4], 3),
        ("3,4", [3, 4], 7),
        ("abs(3-4)", [3, 4], 1),
        ("3/0", [3, 0], 0),
        ("3+4#", [3, 4], 7),
        ("3+4;", [3, 4], 7),
        ("__import__('os').getpid()*0+3+4", [0, 3, 4], 7),
    ],
)
def test_exploits_score_0(answer, nums, target):
    assert score(answer, nums, target) == 0.0


@pytest.mark.parametrize(
    ("answer", "nums"),
    [
        ("44**19**35", [44, 19, 35]),
        ("9**9**9", [9, 9, 9]),
        ("(" * 100_000 + "9" + ")" * 100_000, [9]),
        ("-" * 100_000 + "9", [9]),
        ("-" * 900 + "9", [9]),
        ("(" * 450 + "9" + ")" * 450, [9]),
        ("9" * 100_000, [9]),
        ("*".join(["9"] * 400), [9] * 400),
    ],
)
def test_expensive_answers_are_cheap(answer, nums):
    assert score(answer, nums, 98) == 0.0


@processor_time
def test_many_opening_tags_take_linear_time():
    text = "<answer>" * 50_000 + "\n" + "<answer>" * 50_000
    with at_most_cpu_s(2.0):  # the regular expression of the recipes takes minutes
        assert countdown(text + "</answer>" * 50_000, nums=[1], target=1).score == 0.0


def test_the_first_answer_without_a_line_break_counts():
    text = "<answer>3 +\n 4</answer> <answer>3 + 4</answer> <answer>3 - 4</answer>"
    assert countdown(text, nums=[3, 4], target=7).score == 1.0
    assert countdown(text, nums=[3, 4], target=-1).score == 0.0


def test_no_answer_scores_0():
    assert countdown("3 + 4", nums=[3, 4], target=7).score == 0.0
    assert countdown("<answer>3 + 4", nums=[3, 4], target=7).score == 0.0


def test_the_expression_is_logged():
    assert countdown("<answer>3 + 4 = 7</answer>", nums=[3, 4], target=7).log == {"expression": "3 + 4"}


@pytest.mark.parametrize(
    ("nums", "target"),
    [
        ([], 7),
        ("", 7),
        ([7], "seven"),
        ([7], "nan"),
        ([7], float("inf")),
        ([-3, 7], 4),
        ("[-3, 7]", 4),
        ("[1e3]", 7),
        ("[.5, 7]", 7),
        ("[7.5]", 7),
        ("[true, 7]", 7),
        ("[null, 7]", 7),
        ("[1_0, 7]", 7),
        ([7], "1e99999999"),
        ([7], "1e-99999999"),
        ([7], "1e9_9_9_9"),
    ],
)
def test_a_broken_row_is_an_error_and_not_0(nums, target):
    with pytest.raises(ValueError, match="column"):
        score("7", nums, target)


@pytest.mark.parametrize(
    ("nums", "target", "fault"),
    [
        ([1, 2], 3, None),
        (["1", "2"], "3", None),  # as some exports of Parquet have them
        ([1.0, 2.0], 3.0, None),
        ("[1, 2]", "3", None),
        ([True, 2], 3, "column nums: true and false are no numbers"),
        ([1, 2], True, "column target: true and false are no numbers"),
        (True, 3, "column nums: true and false are no numbers"),
    ],
)
def test_a_column_may_hold_texts_and_no_booleans(nums, target, fault):
    mark = countdown.__reward__
    sample = {"completion": "<answer>1 + 2</answer>", "columns": {"nums": nums, "target": target}}
    result = score_sample(mark, checked_params(mark, {}), sample, None)
    assert (result["score"], result.get("detail")) == (None if fault else 1.0, fault)


def test_nothing_is_evaluated():
    import grpo_reward.rewards.countdown as module

    assert "eval(" not in Path(module.__file__).read_text()
