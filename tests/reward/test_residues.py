"""Powers that nobody writes out are compared exactly, and at once."""

import pytest
from sympy import I, Integer, Pow, Symbol, isprime, sin
from sympy.abc import x, y

from grpo_reward.residues import PRIMES, equal_by_residues
from grpo_reward.rewards.accuracy import accuracy


@pytest.mark.parametrize(
    ("answer", "solution", "equal"),
    [
        ("2^{1000000}", "4^{500000}", True),
        ("2^{1000000}+x", "2^{1000000}", False),
        ("2^{1000000}+1", "4^{500000}", False),
        ("2^{82589933}-1", "2^{82589933}", False),
        ("-1+2^{82589933}", "2^{82589933}-1", True),
        (r"x\cdot 2^{1000000}+1", r"x\cdot 2^{1000000}", False),
        ("2^{2^{11}}", "2^{2048}", True),
        ("2^{2^{13}}", "2^{8192}", True),
        ("2^{2^{13}}", "2^{8193}", False),
        ("2^{65536}", "2^{2^{16}}", True),
        ("10^{10^4}", "10^{10000}", True),
        ("2^{2^{2^{2^2}}}", "2^{65536}", True),
        (r"2^{10}\cdot 2^{2^{11}}", "2^{2058}", True),
        (r"\frac{1}{2^{2000}}", "2^{-2000}", True),
        ("x^{1000}+1", "1+x^{1000}", True),
        ("x^{1000}", "x^{1001}", False),
        (r"\sqrt{2^{4000}}", "2^{2000}", True),
    ],
)
def test_accuracy_tells_large_powers_apart(answer: str, solution: str, equal: bool):
    assert accuracy(f"<answer>${answer}$</answer>", solution=f"${solution}$").score == float(equal)


def large(exponent: int) -> Pow:
    return Pow(Integer(2), Integer(exponent), evaluate=False)


@pytest.mark.parametrize("other", [sin(large(10**6)), I * large(10**6), large(10**6) ** x, "2**1000000", None])
def test_what_has_no_remainder_is_not_judged(other: object):
    assert equal_by_residues(large(10**6), other) is None
    assert equal_by_residues(other, large(10**6)) is None


def test_small_numbers_are_left_to_others():
    assert equal_by_residues(large(100), large(101)) is None
    assert equal_by_residues(x + y, y + x) is None


def test_symbols_are_told_apart():
    assert equal_by_residues(large(10**6) * x, large(10**6) * y) is False
    assert equal_by_residues(large(10**6) * x + y, y + x * large(10**6)) is True
    assert equal_by_residues(x**1000 * y, y * Symbol("x") ** 1000) is True


def test_nothing_comes_round_soon():
    """Else an exponent that is off by the order of a base would be taken for the right one."""
    for prime in PRIMES:
        assert isprime(prime)
        assert isprime((prime - 1) // 2)  # so an order is 1, 2, or longer than anything that could come by accident
