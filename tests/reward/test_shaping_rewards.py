"""The rewards that look at length, repetition and steps, against their formulas."""

import math

import pytest

from grpo_reward.rewards.cosine import cosine
from grpo_reward.rewards.length import length
from grpo_reward.rewards.min_length import min_length
from grpo_reward.rewards.reasoning_steps import reasoning_steps
from grpo_reward.rewards.repetition import repetition
from grpo_reward.rewards.soft_overlong import soft_overlong


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0.0),
        ("Step 1: a", 1 / 3),
        ("Step 1: a\n2. b", 2 / 3),
        ("First, a\n- b\n* c\nFinally, d", 1.0),
        ("in 1. place", 0.0),
    ],
)
def test_reasoning_steps(text, score):
    assert reasoning_steps(text) == pytest.approx(score)


def test_reasoning_steps_wanted():
    assert reasoning_steps("First, a. Next, b.", steps=2) == 1.0


def test_min_length():
    assert [min_length("x" * size) for size in (0, 1024, 1025)] == [0.0, 0.0, 1.0]
    assert min_length("xx", min_chars=1) == 1.0


def lengths(answers, sizes, *, prompts=None, gold="$4$", **params):
    texts = [f"<answer>{answer}</answer>" for answer in answers]
    found = length(
        texts,
        prompts=prompts or [[{"role": "user", "content": "2 + 2"}]] * len(texts),
        completion_ids=[[0] * size for size in sizes],
        solution=[gold] * len(texts),
        **params,
    )
    return [score.score for score in found]


def test_length_of_right_answers_falls_and_of_wrong_ones_is_never_a_gain():
    assert lengths([4, 4, 4, 5, 5, 5], [10, 15, 20, 10, 15, 20]) == [0.5, 0.0, -0.5, 0.0, 0.0, -0.5]


def test_length_looks_at_one_group_at_a_time():
    assert lengths([4, 4, 4, 4], [10, 20, 100, 200], prompts=["a", "a", "b", "b"]) == [0.5, -0.5, 0.5, -0.5]


def test_equal_lengths_are_worth_nothing():
    assert lengths([4, 5], [10, 10]) == [0.0, 0.0]
    assert lengths([4], [10]) == [0.0]


def test_length_without_a_gold_answer_or_tokens():
    assert lengths([4, 4], [10, 20], gold="see above") == [None, None]
    assert lengths(["4", "4.0"], [0, 0], unit="characters") == [0.5, -0.5]
    with pytest.raises(ValueError, match='set unit to "characters"'):
        length(["<answer>4</answer>"], prompts=["a"], completion_ids=[None], solution=["$4$"])


@pytest.mark.parametrize(
    ("text", "score"),
    [("", 0.0), ("a b", 0.0), ("a b c", 0.0), ("a b c d", 0.0), ("a a a a", -0.5), ("A a a a a", -2 / 3)],
)
def test_repetition(text, score):
    assert repetition(text) == pytest.approx(score)


def test_repetition_params():
    assert repetition("a a a", n_grams=1, max_penalty=-0.3) == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("tokens", "score"), [(0, 0.0), (800, 0.0), (900, -0.5), (1000, -1.0), (1001, -1.0), (9999, -1.0)]
)
def test_soft_overlong(tokens, score):
    got = soft_overlong("", completion_token_ids=[0] * tokens, max_len=1000, cache_len=200)
    assert got == pytest.approx(score)


def test_soft_overlong_refuses_a_cache_as_long_as_the_limit():
    with pytest.raises(ValueError, match="cache_len"):
        soft_overlong("", completion_token_ids=[], max_len=100, cache_len=100)


@pytest.mark.parametrize(
    ("answer", "tokens", "score"),
    [
        ("42", 0, 1.0),
        ("42", 50, 0.75),
        ("42", 100, 0.5),
        ("42", 200, 0.5),
        ("42", 1000, 0.5),
        ("43", 0, -0.5),
        ("43", 100, 0.0),
        ("43", 200, 0.0),
    ],
)
def test_cosine_is_clamped(answer, tokens, score):
    got = cosine(f"<answer>{answer}</answer>", solution="42", max_len=100, completion_token_ids=[0] * tokens)
    assert got.score == pytest.approx(score)


def test_cosine_in_characters_with_the_walk_throughs_values():
    text = "<answer>42</answer>"
    got = cosine(
        text, solution="42", max_len=1000, unit="characters", min_len_value_correct=1.0, max_len_value_correct=0.8
    )
    assert got.score == pytest.approx(0.8 + 0.5 * 0.2 * (1 + math.cos(len(text) / 1000 * math.pi)))


def test_cosine_has_no_score_without_a_gold_answer():
    assert cosine("<answer>42</answer>", solution="", max_len=100, completion_token_ids=[]).score is None


def test_cosine_says_that_it_needs_token_ids():
    with pytest.raises(ValueError, match="completion_token_ids"):
        cosine("<answer>42</answer>", solution="42", max_len=100)
