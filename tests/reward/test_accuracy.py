import tracemalloc

import math_verify
import pytest

from grpo_reward.answers import reading, verdict
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


@pytest.mark.parametrize("solution", ["", "see the figure", "<answer></answer>", "None", "nan", "NaN", "<NA>", " null"])
def test_an_unparsable_solution_is_no_score(solution):
    result = accuracy("<answer>42</answer>", solution=solution)
    assert result.score is None
    assert result.detail is not None
    assert "solution" in result.detail


def test_none_in_words_is_a_solution():
    for solution in ("none", "\\boxed{None}", "\\text{None}"):
        assert [accuracy(f"\\boxed{{{answer}}}", solution=solution).score for answer in ("None", "4")] == [1.0, 0.0]


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


FORMULA_AND_PART = [
    (r"\frac{\pi}{3}", "3"), (r"\frac{\sqrt{3}}{2}", "2"), (r"\pi/3", "3"), (r"\frac32", "32"), ("x + 5", "5"),
    ("- 3", "3"), (r"- \frac{1}{2}", r"\frac{1}{2}"), (r"\sqrt3", "3"), ("e^2", "2"), ("t/10", "10"), ("ln 3", "3"),
    (r"\pm 3", "3"), (r"(3+\sqrt{5})/2", "2"), (r"\left(\frac{2}{3}\right)", "3"), (r"\tan 30", "30"), (".5", "5"),
    ("5!", "5"), ("x^2", "2"), ("1,000", "1"), (r"3 \times 10^8", "10"), (r"2\pi", "2"), (r"7-\sqrt{2}", "7"),
]  # fmt: skip


@pytest.mark.parametrize("unit", [r" \text{ meters}", " miles", " apples"])
@pytest.mark.parametrize("before", ["", "about ", "x = ", "The distance is ", "r is ", "Area = "])
def test_a_formula_with_a_unit_is_more_than_its_number(before: str, unit: str):
    for value, part in FORMULA_AND_PART:
        if before == "about " and value.startswith("- "):
            continue  # a dash
        answer = f"{before}{value}{unit}"
        for one, other, score in ((answer, value, 1.0), (answer, part, 0.0), (answer, "7/9", 0.0)):
            assert accuracy(f"\\boxed{{{one}}}", solution=other).score == score, (one, other)
            assert accuracy(f"\\boxed{{{other}}}", solution=f"${one}$").score == score, (other, one)


@pytest.mark.parametrize(
    ("answer", "solution", "score"),
    [
        ("x = 1,000", "1,000", 1.0),
        ("1000", "x = 1,000", 1.0),
        ("x = 1,000", "1", 0.0),
        ("x = 1,2", "12", 0.0),
        ("AB is 5 meters", "5 m", 1.0),
        ("AB is 5 meters", "5 feet", 0.0),
        ("Distance - 5 km", "5", 1.0),
        ("The distance that he walks is x + 5 miles", "x + 5", 1.0),
        ("The distance that he walks is x + 5 miles", "5", 0.0),
        ("half of 5 meters", "5", 0.0),
        ("x meters or 3 feet", "3", 0.0),
    ],
)
def test_words_before_a_formula_leave_it_whole(answer: str, solution: str, score: float):
    assert accuracy(f"<answer>{answer}</answer>", solution=solution).score == score


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


IMAGINARY = [
    (r"3+2\sqrt{2}i", r"3+2i\sqrt{2}", 1.0), (r"\frac{2i}{3}", r"\frac{2}{3}i", 1.0), ("2+2i", "2(1+i)", 1.0),
    (r"\frac{1}{5}+\frac{2}{5}i", r"\frac{1+2i}{5}", 1.0), (r"\frac12+\frac12 i", "0.5+0.5i", 1.0),
    ("1.5i", r"\frac{3}{2}i", 1.0), (r"\pm 2\sqrt{3}i", r"2i\sqrt{3}, -2i\sqrt{3}", 1.0), ("-i", "-1i", 1.0),
    ("-i", r"\frac{1}{i}", 1.0), ("5", "(2+i)(2-i)", 1.0), (r"\frac{1}{1+i}", r"\frac{1-i}{2}", 1.0),
    ("i", r"\sqrt{-1}", 1.0), (r"\sqrt{-4}", "2i", 1.0), (r"e^{i\pi}", "-1", 1.0),
    (r"a+2\sqrt{2}bi", r"a+2bi\sqrt{2}", 1.0),
    ("3+2i", "3-2i", 0.0), ("i", "-i", 0.0), ("2i", "2", 0.0), ("i", "1", 0.0), (r"\frac{2i}{3}", r"\frac{3}{2}i", 0.0),
    (r"e^{i\pi}", "1", 0.0), (r"2\sqrt{2}i", r"3i\sqrt{2}", 0.0), ("1.5i", r"\frac{2}{3}i", 0.0),
    (r"\sum_{i=1}^{n} i", r"\sum_{i=1}^{n} 1", 0.0), ("i=3", "3", 1.0), ("i=3", "i=4", 0.0),
]  # fmt: skip


REGIONS = [
    (r"(1,+\infty)", "a>1", 1.0), ("(0,1)", "0<a<1", 1.0), ("(0,1]", r"0<a\leq1", 1.0), ("[0,1)", r"0\le x<1", 1.0),
    (r"(-\infty, 2]", r"k \leq 2", 1.0), (r"a\in(1,+\infty)", "a > 1", 1.0), ("[-2,7]", r"-2\le x\le 7", 1.0),
    (r"(-\infty,0)\cup(0,\infty)", r"x\neq 0", 1.0), ("x>2", "2x>4", 1.0), ("3>x>1", "1<x<3", 1.0),
    ("x>2", "2<x", 1.0),
    ("x>2", "x>3", 0.0), ("(0,1)", "0<a<2", 0.0), ("(0,1]", "0<a<1", 0.0), (r"(1,\infty)", r"x\ge 1", 0.0),
    (r"(1,\infty)", "x<1", 0.0), ("(0,1)", "(0,1]", 0.0), ("x>2", "2x>5", 0.0), ("2x>4", "2y>4", 0.0),
    ("x<2", "x>2", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), [*IMAGINARY, *REGIONS])
def test_spellings_of_the_imaginary_unit_intervals_and_inequalities_are_compared_alike_in_both_directions(
    one: str, other: str, expected: float
):
    for gold, answer in ((one, other), (other, one)):
        assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected, answer


FAMILIES = [
    (r"\frac{\pi}{6}+2k\pi, k\in\mathbb{Z}", r"\frac{\pi}{6}+2k\pi \ (k \in \mathbb{Z})", 1.0),
    (r"k\pi+\frac{\pi}{3}(k\in \mathbb{Z})", r"\frac{\pi}{3}+k\pi, k\in\mathbb{Z}", 1.0),
    (r"x=k\pi, k \in \mathbf{Z}", r"x=k\pi,k\in\mathbb{Z}", 1.0), (r"x=k\pi, k \in \mathbb{Z}", r"k\pi", 1.0),
    (r"k\pi, k\in\mathbb{Z}", "kπ (k∈ℤ)", 1.0), (r"k\pi, k\in\mathbb{Z}", r"2k\pi, k\in\mathbb{Z}", 0.0),
    (r"k\pi, k\in\mathbb{Z}", r"k\pi, k\in\mathbb{N}", 0.0), (r"k\pi, k\in\mathbb{Z}", r"\pi", 0.0),
    (r"(5, k\in\mathbb{Z})", "5", 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), FAMILIES)
def test_the_numbers_of_a_family_may_be_named_behind_it(one: str, other: str, expected: float):
    for gold, answer in ((one, other), (other, one)):
        assert accuracy(f"<answer>{answer}</answer>", solution=gold).score == expected, answer


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


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("Answer: 34", 1.0), ("**Answer**: 34", 1.0), ("**Answer:** 34", 1.0), ("Final Answer: 34", 1.0),
        ("The final answer: 34", 1.0), ("The answer is 34.", 1.0), ("So the answer is **34**.", 1.0), ("答案：34", 1.0),
        ("### Final Answer\n\n34", 1.0), ("**Final Answer**\n34\n", 1.0), ("The answer is 33.", 0.0),
        ("The answer is $5$.\n\nAnswer: 34", 1.0), ("The answer is not 34", 0.0), ("The answer is 34 or 35.", 0.0),
        ("The answer is left to the reader", 0.0), ("Answer: 34 apples. Or 35?", 0.0), ("An answer: 34", 0.0),
        ("Answer: 34\n\nOr is it 35?", 0.0), ("34", 0.0), ("The wrong answer is 34", 0.0), ("<think>\nAnswer: 34", 0.0),
    ],
)  # fmt: skip
def test_a_last_line_announces_the_answer(said: str, score: float):
    assert accuracy(f"There are 12 of them.\n\n{said}", solution="34").score == score
