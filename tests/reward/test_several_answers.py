"""Several letters or numbers are no answer, however they are put; what only looks like several is one."""

import time

import pytest

from grpo_reward.rewards.gsm8k import gsm8k
from grpo_reward.rewards.multiple_choice import multiple_choice


def chosen(text: str) -> str | None:
    log = multiple_choice(text, solution="B").log
    assert log is not None
    return log["choice"]


@pytest.mark.parametrize(
    "text",
    [
        "B or else C", "B but maybe C", "B - or C", "B, alternatively C", "B) Paris or C) Rome", "B. Paris\nC. Rome",
        "A. x\nB. y\nC. z\nD. w", "A. x B. y C. z D. w", "(A) x\n(B) y", "B: Paris\nC: Rome", "B) Paris, C) Rome",
        "B. Paris; C. Rome", "B. Paris or C. Rome", "B, but also C", "B or it could be C", "B, or else maybe A",
        "option B or option C", "B or it's C", "B) Paris\nC",
    ],
)  # fmt: skip
def test_several_letters_are_no_choice(text):
    assert chosen(f"<answer>{text}</answer>") is None
    assert chosen("\\boxed{" + text + "}") is None


def test_a_gold_answer_of_several_letters_is_none():
    assert multiple_choice("<answer>B</answer>", solution="B. Paris\nC. Rome").score is None


@pytest.mark.parametrize(
    "text",
    [
        "B. George W. Bush", "B. Coulomb (C)", "B) P(A) + P(B)", "B) the event (A and C)", "B. Vitamin C or D",
        "B) Both A and C", "B. Simon and J. Garfunkel", "B) C", "B: Vitamin C", "B. I and II only",
        "B because (A) is too small", "B) Paris, not C) Rome", "B) Paris\n(A) is wrong", "B\n\nExplanation:\nA) no",
        "B. yes, but I am not sure", "B, but I think so", "B. Adenine (A) and Cytosine (C)", "B. C. elegans",
        "B - Paris", "B \u2013 Paris",
    ],
)  # fmt: skip
def test_what_only_looks_like_several_letters_leaves_the_choice(text):
    assert chosen(f"<answer>{text}</answer>") == "B"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So it's B.", "B"),
        ("It\u2019s B!", "B"),
        ("That leaves B.", "B"),
        ("The answer's B", "B"),
        ("It is not A or C, so it is B.", "B"),
        ("The answer is (B). Not (A) or (C).", "B"),
        ("The answer is B) Paris, since A) and C) are wrong.", "B"),
        ("The answer is B) Paris.\nC) Rome is in Italy.", "B"),
        ("It's not B.", None),
        ("It is A or it is B.", None),
        ("The answer is B) Paris or C) Rome", None),
        ("The answer is B or else C", None),
        ("<answer>A - Paris</answer>", "A"),
        ("<answer>A \u2014 Paris</answer>", "A"),
    ],
)
def test_a_letter_at_the_end_and_before_a_dash(text, letter):
    assert chosen(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        "B) x, C) is wrong " * 10_000, "B or " * 30_000, "B" + " but" * 40_000, "B" + " or also" * 30_000,
        "B) " + "(" * 100_000, "B.\n" + "A\n" * 50_000, "B) not or " * 20_000, "B" + " or it could be" * 20_000,
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
@pytest.mark.parametrize("before", ["<answer>", "The answer is ", "it's "])
def test_hostile_rows_of_letters_take_no_time(before, text):
    started = time.process_time()
    multiple_choice(f"{before}{text}</answer>", solution="D")
    assert time.process_time() - started < 1.0


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
