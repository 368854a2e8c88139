"""What people and models type is read as they mean it, in answers and in gold answers."""

import pytest

from grpo_reward.answers.plain import typed
from grpo_reward.rewards.accuracy import accuracy
from grpo_reward.rewards.math_boxed import math_boxed


@pytest.mark.parametrize(
    ("answer", "solution", "expected"),
    [
        ("10{,}000", "10000", 1.0),
        ("10{,}000", "10", 0.0),
        ("10000", "10{,}000", 1.0),
        ("10", "10{,}000", 0.0),
        ("0", r"$10\,000$", 0.0),
        ("10000", r"$10\,000$", 1.0),
        (r"12\,345", "12345", 1.0),
        (r"10\ 000", "10000", 1.0),
        ("12~345", "12345", 1.0),
        (r"$\frac{10{,}000}{3}$", r"\frac{10000}{3}", 1.0),
        (r"\frac{10000}{3}", r"$\frac{10{,}000}{3}$", 1.0),
        (r"10000\pi", r"10{,}000\pi", 1.0),
        ("10{,}000", "x=10{,}000", 1.0),
        ("1234567", "1{,}234{,}567", 1.0),
        ("-10{,}000", "-10000", 1.0),
        ("10,000", "10000", 1.0),
        ("6.67e-11", "6.68e-11", 0.0),
        ("1e-7", "2e-7", 0.0),
        ("0.0", r"$6.67\times10^{-11}$", 0.0),
        (r"$6.67\times 10^{-11}$", "6.67e-11", 1.0),
        ("0.333333", "1/3", 1.0),
        ("0.3333", "1/3", 0.0),
        ("0.003333", r"$\frac{1}{300}$", 1.0),
        ("0.0000667", "6.67e-5", 1.0),
        ("0.0", "0", 1.0),
        ("0.00", "$0$", 1.0),
        ("5 m/s", "5", 1.0),
        ("5 m^2", "5", 1.0),
        ("5 N/m", "5", 1.0),
        ("5 J", "5", 1.0),
        ("20 L", "20", 1.0),
        ("5 L/s", "5", 1.0),
        ("5 km/h", "5", 1.0),
        ("5 cm", "5", 1.0),
        ("6 m/s", "5", 0.0),
        ("5 m/s", "5 m/s", 1.0),
        ("5 m^2", "$5m^2$", 1.0),
        ("5", "5 m/s", 1.0),
        ("6", "5 m/s", 0.0),
        ("5 km/h", "5 m/s", 0.0),
        ("5m/s", "5", 0.0),
        ("5 x", "5", 0.0),
        ("5 x^2", "5", 0.0),
        ("5 m²", "5", 1.0),
        ("2√2", "2", 0.0),
        ("2√2", r"2\sqrt{2}", 1.0),
        ("2π", "2", 0.0),
        ("2π", r"$2\pi$", 1.0),
        ("2½", "2", 0.0),
        ("2½", "2.5", 1.0),
        ("½", "0.5", 1.0),
        ("5²", "5", 0.0),
        ("5²", "25", 1.0),
        ("10⁵", "100000", 1.0),
        ("10⁵", "10", 0.0),
        ("2×3", "6", 1.0),
        ("5×10^3", "5000", 1.0),
        ("5×10³", "5000", 1.0),
        ("√(3)/2", r"\frac{\sqrt{3}}{2}", 1.0),
        ("√3/2", r"\frac{\sqrt{3}}{2}", 1.0),
        ("∞", r"$\infty$", 1.0),
        ("-(3)", "-3", 1.0),
        ("-x", "$-x$", 1.0),
        ("$-x$", "-x", 1.0),
        ("0", r"0.\overline{3}", 0.0),
        ("1/3", r"0.\overline{3}", 1.0),
        (r"0.1\overline{6}", r"$\frac{1}{6}$", 1.0),
        (r"-0.\overline{3}", r"$-\frac13$", 1.0),
        ("90°", "90", 1.0),
        ("x ≤ 3", r"$x \le 3$", 1.0),
        ("The answer is - roughly - 5", "5", 1.0),
        ("- 5", "-5", 1.0),
        ("[0, ∞)", r"$[0,\infty)$", 1.0),
        ("42", "42", 1.0),
        ("3, 5, 7", "7", 0.0),
    ],
)
def test_an_answer_counts_as_it_is_meant(answer: str, solution: str, expected: float):
    assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == expected


@pytest.mark.parametrize(
    ("answer", "solution", "expected"),
    [
        (r"\underline{16}", "16", 1.0),
        (r"\underline{16}", "6", 0.0),
        (r"{10 \choose 3}", "120", 1.0),
        (r"{10 \choose 3}", "10", 0.0),
        (r"{n \choose k}", r"\binom{n}{k}", 1.0),
        (r"{n \choose k}", r"\binom{k}{n}", 0.0),
        (r"x\equiv 3\pmod 7", r"x \equiv 3 \pmod{7}", 1.0),
        (r"x\equiv 3\pmod 5", r"x \equiv 3 \pmod{7}", 0.0),
        (r"x\equiv 3\pmod 7", "3", 0.0),
        (r"\langle 1,2\rangle", "(1,2)", 1.0),
        (r"\left\langle 2,1\right\rangle", "(1,2)", 0.0),
        (r"0.\dot{3}", "1/3", 1.0),
        (r"0.1\dot6", "1/6", 1.0),
        (r"0.\dot{3}", "0.3", 0.0),
        (r"0.\dot{1}4\dot{2}", "1/9", 0.0),
        (r"\dot{x}", "x", 0.0),
    ],
)
def test_commands_that_say_the_same(answer: str, solution: str, expected: float):
    assert math_boxed(f"\\boxed{{{answer}}}", solution=solution).score == expected
    assert math_boxed(f"\\boxed{{{solution}}}", solution=answer).score == expected


@pytest.mark.parametrize(
    ("boxed", "solution", "expected"),
    [
        ("10", "10{,}000", 0.0),
        ("10000", "10{,}000", 1.0),
        (r"10\,000", "10000", 1.0),
        (r"1.6\times10^{-19}", r"9.1\times10^{-31}", 0.0),
        ("0.0", r"6.67\times10^{-11}", 0.0),
        (r"6.67\times10^{-11}", r"6.67\times10^{-11}", 1.0),
        ("5 m/s", "5", 1.0),
        ("2√2", r"2\sqrt{2}", 1.0),
    ],
)
def test_so_it_does_in_a_box(boxed: str, solution: str, expected: float):
    assert math_boxed(f"\\boxed{{{boxed}}}", solution=solution).score == expected


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        (r"1\,234\,567", "1234567"),
        (r"3{,}14", "3{,}14"),
        (r"1\,2345", r"1\,2345"),
        (r"100\,\text{m}", r"100\,\text{m}"),
        (r"x_{1}~200", r"x_{1}~200"),
        (r"0.1\overline{6}", r"\frac{15}{90}"),
        (r"12.\overline3", r"\frac{111}{9}"),
        (r"\overline{AB}", r"\overline{AB}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("x⁻¹²", "x^{-12}"),
        ("−１２", "-12"),
        ("no mathematics, at all", "no mathematics, at all"),
    ],
)
def test_text_becomes_latex(text: str, latex: str):
    assert typed(text) == latex
