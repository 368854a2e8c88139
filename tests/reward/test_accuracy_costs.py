"""The reward `accuracy`: what an expensive answer costs, and what is never evaluated."""

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.answers import equality, verdict
from grpo_reward.rewards.accuracy import accuracy


@pytest.fixture(autouse=True)
def _forgetful():
    verdict.remembered_scores.clear()
    verdict.remembered_golds.clear()


@pytest.mark.parametrize(
    "answer",
    [
        "\\int_0^1 \\sin(x^3) e^{x^2} dx",
        "\\int_0^\\infty \\frac{\\sin(x^2)}{1+x^5} dx",
        "\\lim_{x \\to 0} x^{x^{x^{x}}}",
    ],
)
@pytest.mark.processes
def test_an_answer_that_takes_for_ever_scores_0_within_2_s(answer: str):
    with at_most_cpu_s(2.0):
        assert accuracy(f"<answer>${answer}$</answer>", solution="$5$").score == 0.0
    assert accuracy("<answer>5</answer>", solution="$5$").score == 1.0, "nothing is left behind"


@processor_time
@pytest.mark.processes
def test_a_solution_that_takes_for_ever_is_no_answers_fault():
    with at_most_cpu_s(5.0):
        result = accuracy("<answer>$5$</answer>", solution="$\\int_0^1 \\sin(x^3) e^{x^2} dx$")
    assert (result.score, result.detail) == (
        None, "the column solution takes too long to be compared with anything"
    )  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9", "44**19**35", "$9^{9^{9^9}}$", "$10^{10^8}$", "$10^{(10^8)}$", "$2^{99999999}$", "$99999999!$",
        f"${'(' * 60}5{')' * 60}$", f"${'{' * 60}5{'}' * 60}$",
    ],
)  # fmt: skip
def test_expressions_that_hang_math_verify_score_0_without_being_evaluated(answer, monkeypatch):
    monkeypatch.setattr(equality, "verify", lambda *_, **__: pytest.fail("it was evaluated"))
    with at_most_cpu_s(1.0):
        assert accuracy(f"<answer>{answer}</answer>", solution="5").score == 0.0
        assert accuracy(f"so \\boxed{{{answer}}}", solution="5").score == 0.0


@pytest.mark.parametrize(
    ("answer", "solution"),
    [("$2^{10}$", "1024"), ("$2^{2^3}$", "256"), ("$[0, 1) \\cup (2, 3]$", "$[0,1)\\cup(2,3]$"), ("$10!$", "3628800")],
)
def test_ordinary_powers_are_evaluated(answer, solution):
    assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == 1.0


@pytest.mark.parametrize(
    ("answer", "solution"),
    [
        ("e^{2}", "e^2"),
        ("e^{2e^{x}}", "(e^{e^x})^2"),
        ("e^{e^{2}}", "e^{e^{1+1}}"),
        ("e^{e^{0.00001}}", "e^{e^{\\frac{1}{100000}}}"),
        ("e^{e^{e^{-20}}}", "e^{e^{\\frac{1}{e^{20}}}}"),
        ("e^{-20000}", "\\frac{1}{e^{20000}}"),
        ("e^{10^{5}}", "e^{100000}"),
        ("\\sin(e^{x^{2}})", "\\sin(e^{x \\cdot x})"),
    ],
)
def test_powers_of_e_that_are_not_vast_are_compared(answer, solution):
    assert accuracy(f"<answer>${answer}$</answer>", solution=f"${solution}$").score == 1.0


def test_an_expensive_gold_may_be_written_down():
    assert accuracy("<answer>$10^{10^8}$</answer>", solution="$10^{10^8}$").score == 1.0


def test_running_out_of_memory_is_no_verdict(monkeypatch):
    def verify(*_: object, **__: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(equality, "verify", verify)
    with pytest.raises(MemoryError):
        accuracy("<answer>6 * 7</answer>", solution="42")


@pytest.mark.parametrize(
    "answer",
    [
        "7" * 20_000,
        "1+" * 10_000 + "1",
        "-" * 10_000 + "1",
        "1," * 10_000 + "1",
        "a" * 50_000,
        "+".join(f"x_{{{number}}}" for number in range(500)),
        "10^{5000 \\cdot 5000 \\cdot 5000}",
        "(x+y+z)^{50}",
        "(x+y)^{29}(z+w)^{29}",
        "(a+b+c+d+e)^{29}",
        "(x+y)^{10}(x+z)^{10}(y+z)^{10}(w+x)^{10}",
        "e^{(x+y)^{29}(z+w)^{29}}",
        "x = (x+y)^{29}(z+w)^{29}",
        "\\{(x+y)^{29}(z+w)^{29}, 2\\}",
        "(\\frac{5}{6})^{99999999}",
        "\\sum_{k=1}^{10^9} \\frac{1}{k}",
        "(x+1)^{1000}",
        "\\binom{10000000}{5000000}",
        "e^{e^{e^{79}}}",
        "2^{e^{e^{20}}}",
        "\\pi^{-\\pi^{\\pi^{79}}}",
        "e^{e^{e^{20x}}}",
        "x = e^{e^{e^{20}}}",
        "\\sin(e^{e^{20}})",
        "e^{\\cosh(e^{20})}",
        "e^{99999!}",
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("form", ["<answer>{}</answer>", "<answer>${}$</answer>", "so it is \\boxed{{{}}}."])
@processor_time
def test_what_would_take_seconds_is_wrong_at_once(form, answer):
    with at_most_cpu_s(1.0):
        assert accuracy(form.format(answer), solution="$42$").score == 0.0


def test_an_answer_that_is_long_or_large_like_its_solution_is_compared():
    assert accuracy("<answer>$(x+1)^{40}$</answer>", solution="$(x+1)^{40}$").score == 1.0
    thinking = "as 9^{9^9} is too large, and " + "7" * 3000
    assert accuracy(f"{thinking}, it is \\boxed{{42}}", solution="$42$").score == 1.0


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("$(x+y)^{29}(z+w)^{29}$", "$(z+w)^{29}(x+y)^{29}$", 1.0),
        ("$(y+x)^{28}(x+y)(w+z)^{29}$", "$(x+y)^{29}(z+w)^{29}$", 1.0),
        ("$(x+y)^{29}(z+w)^{28}$", "$(x+y)^{29}(z+w)^{29}$", 0.0),
        ("$(x+y)^{29}(z+w)^{29} + 1$", "$(x+y)^{29}(z+w)^{29}$", 0.0),
        ("$(a+b)^{29}(c+d)^{29}$", "$(x+y)^{29}(z+w)^{29}$", 0.0),
        ("$1 - \\left(\\frac{5}{6}\\right)^{50}$", "$1 - \\frac{5^{50}}{6^{50}}$", 1.0),
        ("$1 - \\left(\\frac{5}{6}\\right)^{51}$", "$1 - \\frac{5^{50}}{6^{50}}$", 0.0),
        ("$(-1)^{100}$", "1", 1.0),
        ("$1 + x_{1}^{50}$", "$x_1^{50} + 1$", 1.0),
        ("$(x+1)^{100}$", "$(1+x)^{100}$", 1.0),
    ],
)
@processor_time
def test_large_powers_are_compared_without_multiplying_them_out(answer, solution, score):
    with at_most_cpu_s(1.0):
        assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == score


def test_values_at_a_point_decide_only_where_math_verify_looks_at_values():
    """What is rounded there, what is a name, and what has no value at a point."""
    for answer, solution in [
        ("$0.333333$", "$\\frac{1}{3}$"),
        ("$50\\%$", "$0.5$"),
        ("$9\\%$", "$9$"),
        ("$ABC$", "$\\text{abc}$"),
        ("$x=5$", "$5$"),
        ("$f(x)=x^2$", "$x^2$"),
        ("$\\sum_{k=1}^{10} k$", "$55$"),
        ("$\\int_0^1 2x dx$", "$1$"),
        ("$\\sin^2(x)+\\cos^2(x)$", "$1$"),
        ("$\\frac{x^2-1}{x-1}$", "$x+1$"),
    ]:
        assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == 1.0, (answer, solution)


@processor_time
def test_a_long_solution_does_not_let_expensive_answers_pass():
    solution = "First we add, then we take away. " * 50 + "So it is \\boxed{4}."
    with at_most_cpu_s(1.0):
        assert accuracy("<answer>$9^{9^9}$</answer>", solution=solution).score == 0.0
        assert accuracy("<answer>4</answer>", solution=solution).score == 1.0


def test_a_bare_factorial_as_solution_is_one():
    """math_verify reads 10! without dollar signs as 10; in an answer the sign may be joy."""
    assert [accuracy(f"\\boxed{{{answer}}}", solution="10!").score for answer in ("3628800", "10!", "10")] == [
        1.0,
        1.0,
        0.0,
    ]
    assert accuracy("<answer>42!</answer>", solution="42").score == 1.0
