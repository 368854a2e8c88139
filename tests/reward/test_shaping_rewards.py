"""The rewards that look at length, repetition and steps, against their formulas."""

import math

import pytest

from grpo_reward.rewards.cosine import cosine
from grpo_reward.rewards.length import length
from grpo_reward.rewards.min_length import min_length
from grpo_reward.rewards.reasoning_steps import reasoning_steps
from grpo_reward.rewards.repetition import repetition
from grpo_reward.rewards.soft_overlong import soft_overlong
from grpo_reward.scorer import InvalidParamsError, checked_params


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


def test_a_gold_answer_that_is_no_text_leaves_one_sample_out():
    answers, ids = ["<answer>4</answer>"] * 3, [[0] * size for size in (1, 2, 3)]
    found = length(answers, prompts=["a"] * 3, completion_ids=ids, solution=["$4$", 4, "$4$"])
    assert [score.score for score in found] == [0.5, None, -0.5]
    assert found[1].detail == "column solution: 4 is no text"


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
    # The R1-Zero walk-through's penalty: 2 of 5 trigrams are new.
    assert repetition("a b a b a b a", max_penalty=-0.1) == pytest.approx(-0.06)


@pytest.mark.parametrize(
    ("token_ids", "score"),
    [([], 0.0), ([1, 2], 0.0), ([1, 2, 3], 0.0), ([1, 2, 3, 4], 0.0), ([7, 7, 7, 7], -0.5), ([1, 2] * 4, -4 / 6)],
)
def test_repetition_of_tokens(token_ids, score):
    """The words say nothing here: what counts is the tokens."""
    assert repetition("a a a a a", unit="tokens", completion_token_ids=token_ids) == pytest.approx(score)
    assert repetition("甲乙甲乙甲乙甲乙") == 0.0
    trl = pytest.importorskip("trl.rewards").get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0)
    assert trl(completion_ids=[token_ids]) == [pytest.approx(score)]


def test_repetition_without_a_loop_is_no_negative_zero():
    assert math.copysign(1.0, repetition("a b c d")) == 1.0


def test_repetition_says_that_it_needs_token_ids():
    with pytest.raises(ValueError, match='send them or set unit to "words"'):
        repetition("a a a a", unit="tokens")


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


def scaled(answer: str, length: int, *, max_len: int = 100, **params: object) -> float:
    """Score of `answer` where 42 is right, at `length` tokens."""
    score = cosine(
        f"<answer>{answer}</answer>",
        solution="42",
        max_len=max_len,
        completion_token_ids=[0] * length,
        **{"unit": "tokens", **params},
    ).score
    assert score is not None
    return score


@pytest.mark.parametrize(
    ("preset", "right", "wrong"),
    [  # at length 0, T/2, T and 2T
        ("ms_swift", (1.0, 0.75, 0.5, 0.5), (-0.5, -0.25, 0.0, 0.0)),
        ("ms_swift_docs", (1.0, 0.75, 0.5, 0.5), (0.0, -0.25, -0.5, -0.5)),
        ("trl", (1.0, 0.75, 0.5, 0.5), (-1.0, -0.75, -0.5, -0.5)),
        ("r1_zero", (1.0, 0.9, 0.8, 0.8), (-0.5, -0.3, -0.1, -0.1)),
    ],
)
def test_cosine_presets(preset, right, wrong):
    lengths = (0, 50, 100, 200)
    assert [scaled("42", size, preset=preset) for size in lengths] == pytest.approx(list(right))
    assert [scaled("43", size, preset=preset) for size in lengths] == pytest.approx(list(wrong))
    for answer, (start, *_, end) in (("42", right), ("43", wrong)):
        scores = [scaled(answer, size, preset=preset) for size in range(0, 400, 10)]
        assert scores == sorted(scores, reverse=start > end)  # one way only
        assert scores[10:] == pytest.approx([end] * 30)


def test_cosine_of_the_walk_through_counts_characters_up_to_1000():
    text = "<answer>42</answer>"
    for padding in (0, 500 - len(text), 1000 - len(text), 5000):
        share = min((len(text) + padding) / 1000, 1.0)
        got = cosine(" " * padding + text, solution="42", preset="r1_zero")
        assert got.score == pytest.approx(0.8 + 0.2 * 0.5 * (1 + math.cos(math.pi * share)))
    assert cosine(" " * 481 + "<answer>43</answer>", solution="42", preset="r1_zero").score == pytest.approx(-0.3)


def test_cosine_values_beside_a_preset_win():
    given = {"preset": "r1_zero", "max_len_value_correct": 0.0, "min_len_value_wrong": -2.0}
    assert [scaled("42", size, **given) for size in (0, 100)] == [1.0, 0.0]
    assert [scaled("43", size, **given) for size in (0, 100)] == pytest.approx([-2.0, -0.1])
    assert scaled("42", 20, max_len=20, preset="r1_zero") == pytest.approx(0.8)
    text = "<answer>42</answer>"
    assert cosine(text, solution="42", max_len=2 * len(text), unit="characters").score == pytest.approx(0.75)


def test_cosine_of_trl_is_trls():
    trl = pytest.importorskip("trl.rewards").get_cosine_scaled_reward(max_len=100)
    for answer in ("42", "43"):
        completion = [{"role": "assistant", "content": f"\\boxed{{{answer}}}"}]
        for size in (0, 30, 100, 250):
            (theirs,) = trl([completion], solution=["42"], completion_ids=[[0] * size])
            ours = cosine(
                completion[0]["content"], solution="42", max_len=100, preset="trl", completion_token_ids=[0] * size
            )
            assert ours.score == pytest.approx(theirs)


def test_cosine_needs_a_max_len_before_anything_is_scored():
    for params in ({}, {"preset": "trl"}, {"max_len": None}):
        with pytest.raises(InvalidParamsError, match="set max_len: the preset"):
            checked_params(cosine.__reward__, params)
    for params in ({"max_len": 9}, {"preset": "r1_zero"}, {"preset": "trl", "max_len": 9}):
        checked_params(cosine.__reward__, params)
    with pytest.raises(InvalidParamsError, match=r"^max_len: "):
        checked_params(cosine.__reward__, {"max_len": 0})
    with pytest.raises(ValueError, match="set max_len"):
        cosine("", solution="42")


def test_cosine_has_no_score_without_a_gold_answer():
    assert cosine("<answer>42</answer>", solution="", max_len=100, completion_token_ids=[]).score is None


def test_cosine_says_that_it_needs_token_ids():
    with pytest.raises(ValueError, match="completion_token_ids"):
        cosine("<answer>42</answer>", solution="42", max_len=100)
