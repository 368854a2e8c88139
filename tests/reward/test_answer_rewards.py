"""The rewards that compare an answer with a gold one."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward import Score
from grpo_reward.answers.place import boxed
from grpo_reward.normal_form import normal_form
from grpo_reward.rewards.accuracy import accuracy
from grpo_reward.rewards.exact_match import exact_match
from grpo_reward.rewards.gsm8k import gsm8k
from grpo_reward.rewards.length import length
from grpo_reward.rewards.math_boxed import math_boxed
from grpo_reward.rewards.tool_call import Call, tool_call
from grpo_reward.scorer import checked_params, score_sample
from grpo_reward.strict_json import MAX_DEPTH


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


@pytest.mark.parametrize("numbers", ["18 19", "18 | 19", "18|19", "18 20 21 22", "18 -3"])
def test_several_numbers_side_by_side_are_no_answer(numbers):
    assert gsm8k(f"#### {numbers}", answer="18").score == 0.0
    assert gsm8k(f"#### 18\n{numbers}", answer="18").score == 1.0


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
        (r"\boxed{$0.5$}", 1.0),
        (r"\boxed{3$ $0.5}", 0.0),
        (r"\boxed{3$, $0.5}", 0.0),
        (r"\boxed{0.5</answer>}", 0.0),
        (r"\boxed{3}</answer><answer>\boxed{0.5}", 1.0),
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
    assert boxed(r"\boxed{a} \boxed{\{b\}{c}} d}") == r"\{b\}{c}"


def test_exact_match():
    assert exact_match("<answer> New\n York </answer>", solution="New York") == 1.0
    assert exact_match("<answer>new york</answer>", solution="New York") == 0.0
    assert exact_match("<answer>new york</answer>", solution="New York", ignore_case=True) == 1.0
    assert exact_match("Zu\u0308rich", solution="Z\u00fcrich") == 1.0
    assert exact_match("<answer>a</answer>", solution="a", whole=True) == 0.0
    assert exact_match("<answer>New York, I say</answer>", solution="New York") == 0.0


@pytest.mark.parametrize("solution", ["", " \n"])
def test_exact_match_with_nothing_is_no_score(solution):
    nothing = Score(None, detail="the column solution is empty")
    assert exact_match("", solution=solution) == nothing
    assert exact_match("<answer></answer>", solution=solution) == nothing


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
        # Readers differ in which of the two counts.
        (WEATHER.replace('"days": 3', '"days": 4, "days": 3'), GOLD, 0.0),
        (WEATHER.replace('"days": 3', '"days": 3, "days": 3'), GOLD, 0.0),
        (WEATHER.replace('{"name"', '{"name": "time", "name"'), GOLD, 0.0),
        (WEATHER.replace('"arguments"', '"arguments": {}, "arguments"'), GOLD, 0.0),
        (WEATHER.replace("3", '{"a": 1, "a": 1}'), GOLD, 0.0),
        (WEATHER.replace("3", "NaN"), GOLD, 0.0),
        (WEATHER.replace("3", "1e999"), GOLD, 0.0),
        (WEATHER.replace("}}", "}} and more"), GOLD, 0.0),
        (WEATHER.replace("}}", "}}}"), GOLD, 0.0),
        ("<tool_call></tool_call>", GOLD, 0.0),
        # What is in a thought is not run.
        (f"<think>I could say {TIME}, or {WEATHER}</think>{WEATHER}", GOLD, 1.0),
        (f"I could use <tool_call>.</think>{WEATHER}", GOLD, 1.0),
        (f"<think>{WEATHER}</think>", GOLD, 0.0),
        (f"<think>{WEATHER}", GOLD, 0.0),
        (f"<think>one</think>{TIME}<think>two</think>{WEATHER}", BOTH, 1.0),
        # The tag may have ended the sampling, or stand in a text.
        (WEATHER.removesuffix("</tool_call>"), GOLD, 1.0),
        (
            '<tool_call>{"name": "say", "arguments": {"text": "a <tool_call> b </tool_call>"}}</tool_call>',
            [{"name": "say", "arguments": {"text": "a <tool_call> b </tool_call>"}}],
            1.0,
        ),
    ],
)
def test_tool_call(text, gold, score):
    assert tool_call(text, tool_calls=TypeAdapter(list[Call]).validate_python(gold)).score == score


def of_sample(reward: Callable[..., object], completion: str, column: str, value: object) -> dict[str, Any]:
    described = reward.__reward__  # type: ignore[attr-defined]
    sample = {"completion": completion, "columns": {column: value}}
    return score_sample(described, checked_params(described, {}), sample, None)


ARGUMENTS = '{"days": 3, "city": "Bern"}'


@pytest.mark.parametrize(
    "call",
    [
        {"type": "function", "function": {"name": "weather", "arguments": {"days": 3, "city": "Bern"}}},
        {"type": "function", "id": "call_1", "function": {"name": "weather", "arguments": ARGUMENTS}, "name": None},
        {"name": "weather", "arguments": ARGUMENTS},
        {"name": "weather", "parameters": ARGUMENTS},
    ],
)
def test_a_wanted_call_may_be_as_the_api_of_openai_has_it(call: dict[str, Any]):
    for column in ([call], json.dumps([call])):
        for completion, score in ((WEATHER, 1.0), (WEATHER.replace("3", "4"), 0.0), (TIME, 0.0), ("no call", 0.0)):
            assert of_sample(tool_call, completion, "tool_calls", column)["score"] == score
    made = f"<tool_call>{json.dumps(call)}</tool_call>"
    assert of_sample(tool_call, made, "tool_calls", [call])["score"] == 0.0  # no client of Qwen's and Hermes' runs it


@pytest.mark.parametrize("arguments", ["days", "[3]", "{", "[" * 5000, '{"a": 1, "a": 2}'], ids=lambda text: text[:9])
def test_arguments_that_are_no_object_are_a_fault_of_the_data(arguments: str):
    for column in (
        [{"name": "weather", "arguments": arguments}],
        [{"function": {"name": "w", "arguments": arguments}}],
    ):
        assert of_sample(tool_call, WEATHER, "tool_calls", column)["status"] == "error"


@pytest.mark.parametrize(("gold", "text", "other"), [(True, "true", "false"), (False, "false", "true")])
def test_a_boolean_in_place_of_a_solution_is_its_text(gold: bool, text: str, other: str):
    for reward, form in ((accuracy, "<answer>{}</answer>"), (exact_match, "{}"), (math_boxed, "\\boxed{{{}}}")):
        found = [of_sample(reward, form.format(answer), "solution", gold)["score"] for answer in (text, other, "1")]
        assert found == [1.0, 0.0, 0.0]
        assert of_sample(reward, form.format(5), "solution", 5)["status"] == "error"
    scores = length(["\\boxed{" + text + "}"], prompts=[""], completion_ids=[[1]], solution=[gold])  # type: ignore[list-item]
    assert scores[0].score == 0.0


def test_tool_call_options():
    gold = '[{"name": "weather", "arguments": {"days": 3, "city": "Bern"}}, {"name": "time"}]'
    assert tool_call(TIME + WEATHER, tool_calls=gold, ordered=True).score == 0.0
    assert tool_call(WEATHER + TIME, tool_calls=gold, ordered=True).score == 1.0
    other = WEATHER.replace("Bern", "Basel") + TIME
    assert [tool_call(other, tool_calls=gold, compare_arguments=flag).score for flag in (True, False)] == [0.0, 1.0]
    with pytest.raises(ValueError, match="the column tool_calls is no JSON list"):
        tool_call(WEATHER, tool_calls="weather")


@pytest.mark.parametrize("levels", [MAX_DEPTH - 2, MAX_DEPTH - 1, 500, 5000])
@pytest.mark.parametrize("as_text", [True, False])
def test_a_tool_call_of_the_column_is_as_deep_as_one_can_be_made(levels, as_text):
    deep: list = []
    for _ in range(levels - 1):
        deep = [deep]
    call = f'{{"name": "a", "arguments": {{"x": {"[" * levels}{"]" * levels}}}}}'
    column = f"[{call}]" if as_text else [Call(name="a", arguments={"x": deep})]
    completion = f"<tool_call>{call}</tool_call>"
    if levels == MAX_DEPTH - 2:
        assert tool_call(completion, tool_calls=column).score == 1.0
        return
    with pytest.raises(ValueError, match="the column tool_calls has a call of more than 32 nested levels"):
        tool_call(completion, tool_calls=column)


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


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1/2", "0.5"),
        ("36/2", "18"),
        ("-1/2", "-0.5"),
        ("1 1/2", "1.5"),
        ("\\frac{1}{2}", "0.5"),
        ("$5.00", "5"),
        ("US$5", "5"),
        ("\u20ac 5", "5"),
        ("-3", "-3"),
        ("\u20133", "-3"),
        ("50%", "50"),
        ("50\\%", "50"),
        ("5 apples and 3 pears", "5"),
        ("5 (that is 2 + 3)", "5"),
        ("x = 5", "5"),
        ("5.", "5"),
        ("5...", "5"),
        ("5\r\n", "5"),
        ("**5**", "5"),
        ("\\boxed{5}", "5"),
        (".50", "0.5"),
        ("1,000,000", "1000000"),
        ("10,00,000", "1000000"),
        ("1 000 000", "1000000"),
        ("1\u202f000", "1000"),
        ("1'000", "1000"),
        ("1{,}000.5", "1000.5"),
        ("\uff11\uff18", "18"),
        ("1.000", "1"),
    ],
)
def test_gsm8k_reads(text, number):
    assert gsm8k(f"#### {text}", answer=number).score == 1.0
    assert gsm8k(f"#### {number}", answer=f"#### {text}").score == 1.0
    assert gsm8k(f"#### {text}", answer="7").score == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "1/0", "1/2/3", "1.000.000", "1,5", "1,50", "1,0000", "1.234,56", "1e3", "1E+3", "1_000", "1^2", "1**2",
        "1\u00bd", "1\u00b2", "1:30", "1*3", "1 * 3 = 3", "1 + 2", "1-2", "1\u20132", "1 or 2", "1, 2", "1 and 2",
        "1\\times 2",
        "1" * 401, "1" + ",000" * 134, "1" + ",00" * 200 + ",000", "1/1" + ",000" * 22_000, "1.1.1", "2026-11-21",
    ],
    ids=lambda text: ascii(text)[:12],
)  # fmt: skip
def test_what_gsm8k_could_read_in_two_ways_is_no_number(text):
    for number in ("1", "2", "1000", "1000000", "1.5", "15", "3"):
        result = gsm8k(f"#### {text}", answer=number)
        assert (result.score, result.log) == (0.0, {"number": None})
    assert gsm8k("#### 1", answer=f"#### {text}").score is None


def test_the_longest_number_that_gsm8k_reads_is_logged_in_part():
    number = "1" + ",000" * 132
    result = gsm8k(f"#### {number}", answer=f"#### {number}")
    assert (result.score, result.log) == (1.0, {"number": "1" + "0" * 199})


@pytest.mark.parametrize(
    "text",
    ["1 " * 100_000, "1" * 200_000, "1or " * 50_000, "1" + " " * 200_000, "\\frac{" + "1" * 100_000, ".1" * 50_000],
)
@processor_time
def test_hostile_numbers_take_no_time(text):
    with at_most_cpu_s(1.0):
        assert gsm8k(f"#### {text}", answer="7").score == gsm8k(text, answer="7", strict=False).score == 0.0


class TestNormalForm:
    @pytest.mark.parametrize("text", ["plain", "Ａ１", "e\u0301le\u0300ve", "ﬁ", "한글", "a" + "\u0301" * 30])
    @pytest.mark.parametrize("form", ["NFC", "NFKC"])
    def test_is_unicodes_own(self, text, form):
        assert normal_form(text, form) == unicodedata.normalize(form, text)

    def test_endless_accents_are_cut(self):
        text = "a" + "\u0301\u0323" * 200_000 + "b"
        assert normal_form(text, "NFC") == unicodedata.normalize("NFC", "a" + "\u0301\u0323" * 15 + "b")


@pytest.mark.parametrize(
    "text",
    [
        "18, or 19", "18 (or 19)", "18 (19)", "18 maybe 19", "18... 19", "18 = 19", "18 plus 1", "18 dollars or 19",
        "18 dollars, or maybe 19 dollars", "18 x 3", "18x3", "18 X 3", "18 \u00bd", "18 hours 30 minutes", "18% of 50",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_second_number_that_could_be_meant_makes_it_none(text):
    result = gsm8k(f"#### {text}", answer="18")
    assert (result.score, result.log) == (0.0, {"number": None})
    assert gsm8k("#### 18", answer=f"#### {text}").score is None


@pytest.mark.parametrize(
    "text",
    [
        "18k", "18 km^2", "18 m2", "18 \\text{ m}^{2}", "18 m/s^2", "18^\\circ", "$18 in total", "18 %", "18\n19",
        "18.\n\n2", "18 apples and 3 pears", "18 (that is 2 * 9)", "x = 18", "The answer is 18 dollars",
        "18 \u5343\u7c73",
    ],
    ids=ascii,
)  # fmt: skip
def test_units_and_other_things_leave_the_number(text):
    assert gsm8k(f"#### {text}", answer="18").score == 1.0
