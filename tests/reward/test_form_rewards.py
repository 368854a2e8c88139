"""The rewards that look at the form of a completion alone."""

import re

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.rewards.react_format import react_format
from grpo_reward.rewards.reasoning_steps import reasoning_steps
from grpo_reward.rewards.regex import regex
from grpo_reward.rewards.tag_count import tag_count
from grpo_reward.rewards.think_language import think_language
from grpo_reward.scorer import InvalidParamsError, checked_params


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0.0),
        ("<think>a</think><answer>b</answer>", 1.0),
        ("</answer><answer></think><think>", 1.0),
        ("<think>a</think>b", 0.5),
        ("<think><think>a</think><answer>b</answer>", 0.75),
    ],
)
def test_tag_count(text, score):
    assert tag_count(text) == score


def test_tag_count_with_a_prefix():
    assert tag_count("a</think><answer>b</answer>", prefix="<think>") == 1.0


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>look</think>\nAction: search\nAction Input: {}\n", 1.0),
        ("<think>look</think>Action: search Action Input: x", 1.0),
        ("<think> </think>Action: search\nAction Input: x", 0.0),
        ("<think>look</think>Action: \nAction Input: x", 0.0),
        ("<think>look</think>Action: search\nAction Input: ", 0.0),
        ("<think>look</think>so Action: search\nAction Input: x", 0.0),
        ("<think>a</think><think>b</think>Action: s\nAction Input: x", 0.0),
        ("<think>a</think>Action: s\nAction Input: x\nAction: t\nAction Input: y", 0.0),
        ("<think>a</think>Action: s", 0.0),
        ("Action: s\nAction Input: x", 0.0),
        ("<think>\u200b</think>Action: search\nAction Input: x", 0.0),
        ("<think>look</think>Action: \ufeff\nAction Input: x", 0.0),
        ("<think>look</think>Action: search\nAction Input: \x00", 0.0),
        ("<think>look</think>\r\nAction: search\r\nAction Input: {}\r\n", 1.0),
        ("", 0.0),
    ],
)
def test_react_format(text, score):
    assert react_format(text) == score


@pytest.mark.parametrize("text", ["<think>" * 20_000, "<think>" + "Action:" * 20_000, "<think>a</think>" * 10_000])
@processor_time
def test_hostile_forms_take_no_time(text):
    with at_most_cpu_s(1.0):
        assert (react_format(text), tag_count(text) <= 0.5) == (0.0, True)


def test_regex():
    pattern = re.compile(r"\d+")
    assert [regex(text, pattern=pattern) for text in ("a 7", "a")] == [1.0, 0.0]
    assert [regex(text, pattern=pattern, full=True) for text in ("77", "a 7")] == [1.0, 0.0]


@pytest.mark.parametrize("pattern", ["(", "(?<=a+)b", "x(?i)A", "a{99999999999999999999}"])
def test_a_pattern_that_is_none_is_refused_with_the_reason(pattern):
    with pytest.raises((re.error, OverflowError)) as reason:
        re.compile(pattern)
    with pytest.raises(InvalidParamsError) as refused:
        checked_params(regex.__reward__, {"pattern": pattern})
    assert str(refused.value) == f"pattern: no regular expression: {reason.value}"


@pytest.mark.parametrize(
    ("text", "scripts", "score"),
    [
        ("<think>one two 三四</think><answer>五六七</answer>", ["latin"], 0.5),
        ("<think>one two 三四</think>", ["cjk"], 0.5),
        ("<think>one two 三四</think>", ["latin", "cjk"], 1.0),
        ("<think>один two", ["cyrillic"], 0.5),
        ("naïve cafe\u0301 3 + 4", ["latin"], 1.0),
        ("हिन्दी में", ["devanagari"], 1.0),
        ("हिन्दी word", ["devanagari"], 0.5),
    ],
)
def test_think_language(text, scripts, score):
    assert think_language(text, scripts=scripts).score == score


@pytest.mark.parametrize(
    ("text", "scripts", "score"),
    [
        ("\uff4f\uff4e\uff45 \uff54\uff57\uff4f", ["latin"], 1.0),
        ("\U0001d431 plus \U0001d7cf, \u211d and \u2113", ["latin"], 1.0),
        ("the 1\u00ba and the 2\u00aa", ["latin"], 1.0),
        ("\uff71\uff72\uff73", ["katakana"], 1.0),
        ("\u30e9\u30fc\u30e1\u30f3", ["katakana"], 1.0),
        ("\u4eba\u3005", ["cjk"], 1.0),
        ("\u03c0 is about 3 and \u0394x is small", ["latin"], 1.0),
        ("\u03bb\u03cc\u03b3\u03bf\u03c2 is a word", ["latin"], 0.75),
        ("\u03b7 \u03ce\u03c1\u03b1", ["greek"], 1.0),
        ("\u044f am", ["latin"], 0.5),
        ("\uff4f\uff4e\uff45", ["cjk"], 0.0),
        ("\u4e94 one", ["latin"], 0.5),
    ],
)
def test_other_forms_of_a_letter_are_of_its_script(text, scripts, score):
    assert think_language(f"<think>{text}</think>", scripts=scripts).score == score


@pytest.mark.parametrize(
    "text",
    [
        "one</think><answer>\u4e94</answer>",  # the prompt has written <think>
        "<think>one</think><answer>\u4e94</answer>",
        "<think>one",
    ],
)
def test_which_block_is_looked_at(text):
    assert think_language(text).score == 1.0


def test_a_second_thought_counts():
    assert think_language("<think>one</think><think>\u4e94</think>").score == 0.5


def test_think_language_without_a_word():
    assert think_language("<think>3 + 4 = 7</think>words").score is None
    assert think_language("<think>3 + 4 = 7</think>words", whole=True).score == 1.0


@pytest.mark.parametrize(
    "text", ["<answer></answer>", "<tool_call></tool_call>", "<answer>42</answer>", "\\boxed{42}", "```python\n```"]
)
def test_tags_are_no_words(text):
    assert think_language(text).score is None


def test_tags_do_not_make_another_script_latin():
    assert think_language("<answer>答案</answer>").score == 0.0
    assert think_language("\\frac{1}{2} 是一半", scripts=["cjk"]).score == 1.0
    assert think_language("\\text{half} 一半", scripts=["cjk"]).score == pytest.approx(2 / 3)


def test_a_bullet_stands_right_after_a_line_break():
    assert reasoning_steps("- a\n- b\n- c") == pytest.approx(2 / 3)
    assert reasoning_steps("\n- a\n  - b\n* c\nfirst, d") == pytest.approx(2 / 3)
