"""A letter before a value, in the gold or in the answer: either is right, both only together."""

import pytest

from grpo_reward.rewards.accuracy import accuracy

GOLDS = [
    r"\boxed{\textbf{(C)}\ 12}", r"\textbf{(C)}\ 12", r"\textbf{(C) }12", r"\mathrm{(C)}\ 12", "(C) 12", "C. 12",
    "C: 12", "C) 12", r"$\text{C. } 12$",
]  # fmt: skip


@pytest.mark.parametrize("gold", GOLDS)
def test_of_a_letter_with_a_value_either_is_right(gold: str):
    for answer in ("12", "C", r"\text{(C)}", "(C)", r"\textbf{(C)}\ 12", "C. 12", "12.0"):
        assert accuracy(f"\\boxed{{{answer}}}", solution=gold).score == 1.0, answer
    for answer in ("13", "D", "(D)", "(D) 12", "(C) 13", r"\textbf{(D)}\ 13", "12C", "1", ""):
        assert accuracy(f"\\boxed{{{answer}}}", solution=gold).score == 0.0, answer


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        (r"\frac23", r"\textbf{(B)}\ \frac{2}{3}", 1.0),
        (r"2\sqrt3", r"\textbf{(D)}~2\sqrt{3}", 1.0),
        ("2", r"\textbf{(D)}~2\sqrt{3}", 0.0),
        ("12 km", "(B) 12 miles", 0.0),
        ("12 miles", "(B) 12 miles", 1.0),
        ("New York", "(C) New York", 1.0),
        ("C", "(C) New York", 1.0),
        ("New Jersey", "(C) New York", 0.0),
        ("(C) 12", "12", 1.0),
        ("(C) 13", "12", 0.0),
        ("(C) 12", "C", 1.0),
        ("(C) 12", "D", 0.0),
        ("A", "(A) + 3", 0.0),
        ("3", "(A) + 3", 0.0),
        ("A", "A: 5, B: 6", 0.0),
        ("5", "A. 5\nB. 6", 0.0),
        ("(2,3)", "A(2,3)", 0.0),
        ("5", "(x) 5", 0.0),
    ],
)
def test_what_a_label_is(answer: str, solution: str, score: float):
    assert accuracy(f"\\boxed{{{answer}}}", solution=solution).score == score
