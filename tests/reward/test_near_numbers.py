"""Numbers that are nearly equal, or too large to write out, are told apart exactly, whichever is the solution."""

import pytest
from sympy import Add, Integer, Pow, pi, sqrt
from sympy.abc import x

from grpo_reward.answers.exact import differ, difference, num_terms
from grpo_reward.rewards.accuracy import accuracy

PRIMES = (4573438334503386407, 4264657628376921383, 3281618096932247147)


def scores(one: str, other: str) -> list[float | None]:
    pairs = ((one, other), (other, one))
    return [accuracy(f"<answer>${answer}$</answer>", solution=f"${gold}$").score for answer, gold in pairs]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10^{-30}", "10^{-31}"),
        ("10^{-30}", r"2\cdot 10^{-30}"),
        (r"\frac{1}{2^{100}}", r"\frac{1}{2^{101}}"),
        (r"(\frac12)^{728}", r"-(\frac12)^{728}"),
        ("1-2^{-100}", "1-2^{-101}"),
        (r"\frac{1}{3}", r"\frac{33333333}{100000000}"),
        # beside a power of which a hundred digits are looked at
        ("2^{1000000}+10!", "2^{1000000}+3628801"),
        (r"2^{1000000}+\sqrt2", r"2^{1000000}+\sqrt3"),
        (r"2^{1000000}+\ln 2", "2^{1000000}"),
        ("2^{1000000}+|x|", "2^{1000000}+|y|"),
        (r"2^{1000000}x+\sqrt2", r"2^{1000000}x+\sqrt3"),
        (r"(x+1)^{10000}+5!", r"(x+1)^{10000}+5!+1"),
        (r"(1+\sqrt2)^{10000}", r"(3+2\sqrt2)^{5000}+1"),
        (rf"2^{{10000}}+\frac{{1}}{{{PRIMES[0]}}}", "2^{10000}"),
        (rf"2^{{10000}}+{PRIMES[0] * PRIMES[1] * PRIMES[2]}", "2^{10000}"),
        # towers
        ("3", "9^{9^{9^9}}"),
        ("9^{9^{9^9}}", "9^{9^{9^9}}+1"),
        ("9^{9^{9^9}}", "81^{9^{9^9}}"),
        ("x^{9^{9^9}}", "x^{9^{9^9}}+1"),
        ("2^{10^{400}}", f"2^{{1{'0' * 399}1}}"),
    ],
)
def test_different_numbers(one: str, other: str):
    assert scores(one, other) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10^{-200}", r"\frac{1}{10^{200}}"),
        ("1-2^{-100}", r"1-\frac{1}{2^{100}}"),
        (r"\frac{1}{\sqrt3-\sqrt2}", r"\sqrt3+\sqrt2"),
        (r"\Gamma(\frac13)-\Gamma(\frac13)", "0"),
        (r"\sqrt{10^{180}+1}-10^{90}", r"\frac{1}{\sqrt{10^{180}+1}+10^{90}}"),
        (r"\frac{1}{2^{1000000}}", "2^{-1000000}"),
        ("2^{1000000}", "(-2)^{1000000}"),
        ("2^{1000000}", r"\left(\frac12\right)^{-1000000}"),
        ("3^{1000000}", "(1+2)^{1000000}"),
        ("2^{300000}", "8^{100000}"),
        ("2^{1000000}", "(2^{1000})^{1000}"),
        ("x^{300000}+2^{300000}", "x^{300000}+8^{100000}"),
        ("9^{9^9}", r"3^{2\cdot 9^9}"),
        (r"(\frac32)^{1024}", r"(\frac32)^{2^{10}}"),
        ("25^{81}", "25^{3^{2^2}}"),
        ("1+9^{9^{9^9}}", "9^{9^{9^9}}+1"),
    ],
)
def test_equal_numbers(one: str, other: str):
    assert scores(one, other) == [1.0, 1.0]


@pytest.mark.parametrize("gold", ["2^{10000}", "2^{-1000000}", r"(1+\sqrt2)^{10000}", "10^{-150}"])
@pytest.mark.parametrize(
    "answer",
    [
        "99999999!",
        r"\binom{99999999}{5000000}",
        "(99999!)!",
        r"3^{3^{3^3}}",
        "((((9^{99})^{99})^{99})^{99})^{99}",
        f"{'(' * 60}5{')' * 60}",
        r"\pi^{10^8}",
        r"(\sqrt{2}+\sqrt{3}+\sqrt{5})^{9999999}",
        r"\sin(10^{10^8})",
        r"\sum_{k=0}^{1000000}2^k",
        r"\prod_{k=1}^{100000}k",
        r"\ln(9^{9^9})",
    ],
)
def test_a_large_solution_lets_no_answer_pass_that_takes_for_ever(answer: str, gold: str):
    assert accuracy(f"<answer>${answer}$</answer>", solution=f"${gold}$").score == 0.0


def test_equal_terms_are_taken_away_without_being_evaluated():
    tower = Pow(9, Pow(9, 9, evaluate=False), evaluate=False)
    assert difference(Add(tower, 1, evaluate=False), Add(1, tower, evaluate=False)) == 0
    assert float(difference(tower + x, tower + 2 * x).evalf(subs={x: 3})) == -3.0


def test_numbers_that_a_hundred_digits_do_not_tell_apart():
    large = Pow(1 + sqrt(2), 1000, evaluate=False)
    assert differ(large + pi, large + pi) is False
    assert differ(large, Pow(3 + 2 * sqrt(2), 500, evaluate=False) + 1) is True
    assert differ(large, Pow(3 + 2 * sqrt(2), 500, evaluate=False)) is None  # no digits of their difference: not told


def test_exponents_beyond_what_a_float_can_be():
    assert num_terms(Pow(2, Integer(10) ** 400, evaluate=False)) > 1e9
    assert num_terms(Pow(1, Integer(10) ** 400, evaluate=False)) == 1
