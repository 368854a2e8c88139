import tracemalloc

import math_verify
import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.answers import equality, reading, verdict
from grpo_reward.rewards.accuracy import accuracy


@pytest.fixture(autouse=True)
def _forgetful():
    verdict.remembered_scores.clear()
    verdict.remembered_golds.clear()


@pytest.mark.parametrize(
    ("completion", "solution", "score"),
    [
        ("<answer>42</answer>", "42", 1.0),
        ("<answer>$\\frac{2}{4}$</answer>", "$\\frac{1}{2}$", 1.0),
        ("<answer>0.5</answer>", "$\\frac{1}{2}$", 1.0),
        ("<answer>43</answer>", "42", 0.0),
        ("<answer>I do not know</answer>", "42", 0.0),
        ("<answer></answer>", "42", 0.0),
        ("so it is \\boxed{42}", "Therefore $x = 42$, the answer is $\\boxed{42}$.", 1.0),
        ("so it is \\boxed{43}", "$\\boxed{42}$", 0.0),
        ("so it is 42", "42", 0.0),  # neither tagged nor boxed
        ("<answer>42</answer>", "<answer>42</answer>", 1.0),
        ("<answer>2 + 3x</answer> <answer>7</answer>", "$3x + 2$", 1.0),
        ("<answer>$2 + 3x$</answer> <answer>7</answer>", "$3x + 2$", 1.0),
        ("<answer>\n$42$\n</answer>", "42", 1.0),
        ("so it is \\boxed{42", "42", 0.0),
        ("so it is \\boxed{42", "$\\boxed{42}$", 0.0),
        ("<answer>\u221242</answer>", "-42", 1.0),
        ("<answer>\u221242</answer>", "42", 0.0),
        ("<answer>-42</answer>", "\u221242", 1.0),
        ("<answer>\uff14\uff12</answer>", "42", 1.0),
        ("so it is \\boxed{\uff14\uff12}", "42", 1.0),
        ("<answer>**42**</answer>", "42", 1.0),
        ("<answer>`42`</answer>", "42", 1.0),
        ("<answer>**43**</answer>", "42", 0.0),
        ("<answer>2**3**2</answer>", "512", 1.0),
    ],
)
def test_scores(completion, solution, score):
    assert accuracy(completion, solution=solution).score == score


@pytest.mark.parametrize("solution", ["", "see the figure", "<answer></answer>"])
def test_an_unparsable_solution_is_no_score(solution):
    result = accuracy("<answer>42</answer>", solution=solution)
    assert result.score is None
    assert result.detail is not None
    assert "solution" in result.detail


@pytest.mark.parametrize("unparsable", [0.5, 1.0, 0.0, -1.0])
def test_what_an_unparsable_solution_is_worth_can_be_set(unparsable):
    """0.5 in the R1-Zero walk-through, 1 in open-r1, 0 in ms-swift."""
    result = accuracy("<answer>42</answer>", solution="see the figure", unparsable=unparsable)
    assert (result.score, result.log) == (unparsable, {"solution_parsed": False})
    for answer, score in (("42", 1.0), ("43", 0.0), ("I do not know", 0.0)):
        assert accuracy(f"<answer>{answer}</answer>", solution="42", unparsable=unparsable).score == score


def test_what_is_remembered_is_the_same_for_every_value_of_it():
    for unparsable in (0.5, None, 1.0, 0.5, None):
        for _ in range(2):
            assert accuracy("<answer>42</answer>", solution="no gold", unparsable=unparsable).score == unparsable
            assert accuracy("<answer>6 * 7</answer>", solution="42", unparsable=unparsable).score == 1.0
            assert accuracy("<answer>6 * 6</answer>", solution="42", unparsable=unparsable).score == 0.0
            assert accuracy("<answer>no gold</answer>", solution="no gold", unparsable=unparsable).score == unparsable


BARE = [
    ("2\\pi r", "2", 0.0), ("2\\pi r", "2r\\pi", 1.0), ("5\\sqrt{2}", "5", 0.0), ("5\\sqrt{2}", "\\sqrt{50}", 1.0),
    ("5", "5\\sqrt{2}", 0.0), ("2^{10}", "2", 0.0), ("2^{10}", "1024", 1.0), ("10^{10}", "10", 0.0), ("3+4i", "3", 0.0),
    ("3+4i", "4i+3", 1.0), ("y=2x+1", "2", 0.0), ("3x^2", "3", 0.0), ("1 \\pm \\sqrt{19}", "1", 0.0),
    ("11\\sqrt2", "11", 0.0), ("x=5", "5", 1.0), ("5", "x=5", 1.0), ("(1,2)", "(1, 2)", 1.0), ("(1,2)", "2", 0.0),
    ("2000", "2e3", 1.0), ("2", "2e3", 0.0), ("12", "12 cm", 1.0), ("3", "3 \\text{ cm}", 1.0), ("4", "4 apples", 1.0),
    ("4", "the answer is 4", 1.0), ("0.5", "50\\%", 1.0), ("1000", "1,000", 1.0), ("3", "\\frac{3}{4}", 0.0),
    ("12:30", "12", 0.0), ("512", "2**3**2", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer", "expected"), BARE)
def test_a_formula_without_dollar_signs_is_read_as_a_whole(gold: str, answer: str, expected: float | None):
    assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected
    if expected != 1.0:
        assert accuracy(f"\\boxed{{{answer}}}", solution=gold).score == expected


LISTS = [
    ("3, 5, 7", "3, 5, 7", 1.0), ("3, 5, 7", "7, 5, 3", 1.0), ("3, 5, 7", "7", 0.0), ("3, 5, 7", "3, 5", 0.0),
    ("1,-2", "-2, 1", 1.0), ("1,-2", "-2", 0.0), ("1,-2", "1", 0.0), ("6,31,-1", "31, 6, -1", 1.0), ("1; 2", "2", 0.0),
    ("2 or 3", "3, 2", 1.0), ("2 or 3", "3", 0.0), ("2, 3, and 5", "5, 3, 2", 1.0), ("x=1 or x=2", "2", 0.0),
    ("42", "41, 42", 0.0), ("42", "41 or 42", 0.0), ("42", "41; 42", 0.0), ("42", "x=41 or x=42", 0.0),
    ("1,000, 2,000", "2000, 1000", 1.0), ("1,234,567", "1234567", 1.0), ("1,000", "1", 0.0), ("0.5", "0,5", None),
    ("4, 2", "2,4", 1.0), ("4, 2", "2,5", 0.0),
    ("2.5, .5", "0.5, 2.5", 1.0), ("(1,2), (3,4)", "(3,4), (1,2)", 1.0), ("{1, 2}", "1, 2", 1.0), ("{1, 2}", "2", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer", "expected"), LISTS)
def test_a_list_without_dollar_signs_is_read_as_a_whole(gold: str, answer: str, expected: float | None):
    """math_verify takes the last of its numbers; None is where a comma may be a decimal point, which stays as there."""
    if expected is None:
        parsed = [math_verify.parse(text, extraction_mode="first_match") for text in (gold, answer)]
        expected = float(math_verify.verify(*parsed))
    else:
        assert accuracy(f"\\boxed{{{answer}}}", solution=gold).score == expected
    assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected


SAME, OTHER = 1.0, 0.0
UNITS_AND_TEXT = [
    ("5 km", "5 m", OTHER), ("5 kg", "5 g", OTHER), ("5 h", "5 min", OTHER), ("5 km", "5000 m", OTHER),
    ("5 km", "5 kilometers", SAME), ("5 km", "5 Kilometres", SAME), ("5 m/s", "5 meters per second", SAME),
    ("5 m/s", "5 m s^{-1}", SAME), ("5 m/s", "5 km/h", OTHER), ("5 m/s", "5 m/s^2", OTHER),
    ("9.8 m/s^2", "9.8 m/s/s", SAME), ("60 mph", "60 miles per hour", SAME), ("60 mph", "60 km/h", OTHER),
    ("3 m^2", "3 square meters", SAME), ("3 m^2", "3 m", OTHER), ("3 cm^3", "3 cubic centimeters", SAME),
    ("20 ft^2", "20 sq ft", SAME), ("20 ft^2", "20 square feet", SAME), ("5 in", "5 inches", SAME),
    ("5 in", "5 ft", OTHER), ("2 h", "2 hours", SAME), ("2 hr", "2 hrs", SAME), ("30 s", "30 sec", SAME),
    ("30 s", "30 seconds", SAME), ("30 min", "30 minutes", SAME), ("7 mW", "7 MW", OTHER), ("7 kWh", "7 kW", OTHER),
    ("3 N*m", "3 N \\cdot m", SAME), ("10 lb", "10 pounds", SAME), ("10 lb", "10 oz", OTHER),
    ("4 L", "4 liters", SAME), ("4 L", "4 mL", OTHER), ("5 km", "6 km", OTHER), ("1/2 km", "0.5 km", SAME),
    ("5\\text{ cm}", "5 cm", SAME), ("5\\text{ cm}", "5\\,\\mathrm{mm}", OTHER), ("5 km", "5", SAME),
    ("3\\text{ cm}^2", "3", SAME), ("3m^2", "3", OTHER), ("2\\pi \\text{ m}", "2\\pi", SAME), ("42", "= 42", SAME),
    ("42", "$= 42$", SAME), ("42", "= 43", OTHER), ("12:30", "12:30", SAME), ("12:30", "12:3", OTHER),
    ("12:30", "0.4", OTHER), ("12:30", "12", OTHER), ("3:4", "3 : 4", SAME), ("3:4", "0.75", OTHER),
    ("1:02:03", "1:02:03", SAME), ("12:30", "$12:30$", SAME),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), UNITS_AND_TEXT)
def test_units_and_times_are_compared_alike_in_both_directions(one: str, other: str, expected: float):
    assert accuracy(f"<answer>{other}</answer>", solution=one).score == expected
    assert accuracy(f"<answer>{one}</answer>", solution=other).score == expected
    if "=" not in other:
        assert accuracy(f"so \\boxed{{{other}}}", solution=one.join("$$") if "\\" in one else one).score == expected


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


MATRIX = "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        (MATRIX, MATRIX.replace(" ", ""), 1.0),
        (MATRIX, MATRIX.replace("4", "5"), 0.0),
        ("\\$18.90", "18.9", 1.0),
        ("18.9", "\\$18.90", 1.0),
        ("\\$18.90", "18", 0.0),
        ("90", "90\u00b0", 1.0),
        ("90\u00b0", "90^\\circ", 1.0),
        ("20", "20 \u00b0C", 1.0),
        ("42", "42\u200b", 1.0),
        ("\\text{odd}", "odd", 1.0),
        ("\\text{odd}", "even", 0.0),
    ],
)
def test_what_is_written_in_another_way_is_the_same(gold: str, answer: str, expected: float):
    assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected
    if "C" not in answer:
        assert accuracy(f"so it is \\boxed{{{answer}}}.", solution=gold).score == expected


def test_agrees_with_math_verify():
    golds = [
        "$42$",
        "$\\frac{1}{2}$",
        "$x^2 + 2x + 1$",
        "$(0, 1]$",
        "$\\{1, 2\\}$",
        "$\\sqrt{8}$",
        "$12\\%$",
        "see below",
    ]
    answers = ["42", "$\\frac{2}{4}$", "$(x+1)^2$", "$(0,1]$", "$\\{2,1\\}$", "$2\\sqrt{2}$", "0.12", "$A$", "1/2"]
    for gold in golds:
        parsed = math_verify.parse(gold, extraction_mode="first_match")
        for answer in answers:
            answer_parsed = math_verify.parse(answer, extraction_mode="first_match")
            expected = float(math_verify.verify(parsed, answer_parsed)) if parsed else None
            assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected, (gold, answer)


def test_the_gold_is_read_once_and_equal_answers_are_remembered(monkeypatch):
    texts = []
    monkeypatch.setattr(verdict, "read", lambda text, **more: texts.append(text) or reading.read(text, **more))
    for answer in ("42", "6 * 7", "6 * 7", "42"):
        assert accuracy(f"<answer>{answer}</answer>", solution="42").score == 1.0
    assert texts == ["42", "6 * 7"]  # the answer "42" equals the gold as text


def test_what_is_remembered_of_long_solutions_is_bounded(monkeypatch):
    monkeypatch.setattr(verdict, "_compare", lambda *_: 1.0)
    tracemalloc.start()
    try:
        for number in range(300):
            solution = f"It is {number}. {'so it is ' * 20_000} and the answer is $\\boxed{{{number}}}$."
            assert accuracy(f"<answer>{number} + 0</answer>", solution=solution).score == 1.0
        assert tracemalloc.get_traced_memory()[0] < 4 * verdict.MEMO_SIZE
    finally:
        tracemalloc.stop()


def test_as_many_short_ones_are_remembered_as_a_large_batch_has(monkeypatch):
    assert accuracy("<answer>0 + 0</answer>", solution="0").score == 1.0
    for number in range(2000):
        accuracy(f"<answer>{number}</answer>", solution=f"{number}")
    monkeypatch.setattr(verdict, "read", lambda *_, **__: pytest.fail("it was parsed again"))
    for answer, solution in (("0 + 0", "0"), ("0", "0"), ("1999", "1999")):
        assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == 1.0


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


@pytest.mark.parametrize(
    ("completion", "solution"),
    [
        ("so \\boxed{42}", "42"),
        ("so \\boxed{42}", "$42$"),
        ("<answer>$42$</answer>", "42"),
        ("<answer>42</answer>", "$42$"),
    ],
)
def test_equal_text_is_not_parsed(completion, solution, monkeypatch):
    accuracy("", solution=solution)  # which is parsed, once
    monkeypatch.setattr(verdict, "read", lambda *_, **__: pytest.fail("it was parsed"))
    assert accuracy(completion, solution=solution).score == 1.0


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


@pytest.mark.parametrize(
    ("completion", "solution", "score"),
    [
        ("**The final answer is $18$**", "18", 1.0),
        ("The final answer is 18. I checked that the final answer is right.", "18", 1.0),
        ("I will put it in \\boxed{}. The final answer is 18.", "18", 1.0),
        ("<answer>The result \\boxed{} is 18</answer>", "18", 1.0),
        ("<think>The final answer is 18.", "18", 0.0),
        ("\\boxed{9}", "Janet sells 16 - 3 - 4 = 9 eggs.\n#### 9", 1.0),
        ("\\boxed{2,1}", "1,2", 1.0),
        ("\\boxed{1.2}", "1,2", 1.0),
        ("\\boxed{\\text{multiple of }5}", "5", 0.0),
        ("\\boxed{5 or six}", "5", 0.0),
        ("\\boxed{£5}", "5 lb", 0.0),
        ("\\boxed{£45}", "45 pounds", 1.0),
        ("\\boxed{25\\text{ units}^2}", "25", 1.0),
        ("\\boxed{9.8\\ \\mathrm{m\\cdot s^{-2}}}", "9.8 m/s^2", 1.0),
        ("\\boxed{\\frac{dy}{dx}=5x}", "$\\frac{dy}{dx}=3x$", 0.0),
        ("\\boxed{5 m\u0131llion}", "5", 0.0),
        ("\\boxed{5 thou\u017fand}", "7", 0.0),
        ("<answer>5 " + "!" * 600 + "</answer>", "5", 0.0),
        ("\\boxed{" + "-" * 300 + "5}", "6", 0.0),
    ],
    ids=lambda text: str(text)[:40],
)
def test_kinds_that_readers_found(completion: str, solution: str, score: float):
    assert accuracy(completion, solution=solution).score == score


def test_a_block_that_a_stop_string_ended_is_one():
    for truncated, score in ((False, 1.0), (True, 0.0), (None, 0.0)):
        assert accuracy("<think>x</think><answer>42", solution="42", truncated=truncated).score == score
    assert accuracy("<think>x<answer>42", solution="42", truncated=False).score == 0.0
