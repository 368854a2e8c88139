"""What SymPy imports late: every fresh worker would import it anew, and without free descriptors it would fail in a
`try` of math_verify's, which makes "not equal" of it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

PROGRAM = r"""
import resource, sys
from grpo_reward.rewards.accuracy import accuracy
known = set(sys.modules)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
pairs = [
    ("0.5", r"\boxed{\frac{1}{2}}"), ("x^2-1", r"(x-1)(x+1)"), ("x^2-1", "x^2+1"), ("e^{2x}", r"(e^x)^2"),
    (r"\sin^2 x+\cos^2 x", "1"), ("(0,1)", "[0,1]"), (r"\{1,2\}", r"\{2,1\}"), (r"\{1,2\}", r"\{2,1,3\}"),
    ("x<2", "2>x"), ("(0,1)", "1>x>0"), (r"x\neq 0", "2x>4"), ("5", "(2+i)(2-i)"), (r"k\pi, k\in\mathbb{Z}", r"k\pi"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&3\end{pmatrix}"), (r"\log_2 8", "3"), ("x=1,y=2", "1,2"),
    (r"(0,1)\cup(1,2)", r"(0,2)"), (r"A \text{ or } B", "B"), ("The answer is a good one", "The answer is A good one"),
]
for solution, answer in pairs:
    print(accuracy(f"<answer>${answer}$</answer>", solution=f"${solution}$").score)
print(*set(sys.modules) - known, file=sys.stderr)
"""


def test_comparing_needs_no_file():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert result.stderr.split() == []
    scores = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert list(map(float, result.stdout.split())) == scores
