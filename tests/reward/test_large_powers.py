"""Powers that nobody writes out are compared exactly, and at once."""

import pytest

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
