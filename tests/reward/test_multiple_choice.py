"""Which letter a completion chooses: how it is put, what only looks like one, and when several make it none."""

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.option_tokens import Tokens
from grpo_reward.rewards.multiple_choice import multiple_choice


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("(B) [c] D)", "B) C) D)"),
        ("B. x\nC: y", "B. . X line C: : Y"),
        ("f(A) and (see B)", "F ( A ) word:and ( word:see B )"),
        ("U.S. D-Day isn't it's", "word:u.s. word:d-day word:isn't word:it word:'s"),
        ("答案是B", "word:答案 word:是 B"),
        ("A->B", "A -> B"),
    ],
)
def test_tokens(text, tokens):
    names = {"letter": "{0.text}{0.label}", "word": "word:{0.text}", "mark": "{0.text}", "line": "line"}
    found = [names[token.kind].format(token) for token in Tokens.of(text).all]
    assert " ".join(found) == tokens


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>**B**</answer>", 1.0),
        ("The answer is **B**.", 1.0),
        ("\\boxed{\\text{B}}", 1.0),
        ("\\boxed{\\textbf{(B)}}", 1.0),
        ("<answer>$B$</answer>", 1.0),
        ("<answer>**A**</answer>", 0.0),
        ("<answer>B</answer>", 1.0),
        ("<answer> (b) Paris </answer>", 1.0),
        ("<answer>B. Paris</answer>", 1.0),
        ("<answer>A or B</answer>", 0.0),
        ("<answer>Both</answer>", 0.0),
        ("<answer></answer> The answer is B", 0.0),
        (r"\boxed{B}", 1.0),
        ("First I thought the answer is A, but the answer is (B).", 1.0),
        ("The answer is Both", 0.0),
        ("B", 1.0),
    ],
)
def test_multiple_choice(text, score):
    assert multiple_choice(text, solution="B) Paris").score == score


def chosen(text: str) -> str | None:
    log = multiple_choice(text, solution="B").log
    assert log is not None
    return log["choice"]


CHOSEN = [
    # As public harnesses ask for it.
    ("Answer: B", "B"),
    ("**Answer:** B", "B"),
    ("**Answer**: **B**", "B"),
    ("### Answer: B", "B"),
    ("ANSWER: B", "B"),
    ("Answer: (B) Paris", "B"),
    ("Answer: $\\boxed{\\text{(B)}}$", "B"),
    ("Final Answer: \\(B\\)", "B"),
    ("The correct answer is option B.", "B"),
    ("The correct answer is B\nExplanation: A is wrong", "B"),
    ("The best choice is B", "B"),
    ("The answer to this question is B because of its tower", "B"),
    ('{"answer": "B"}', "B"),
    ("答案是B。", "B"),
    ("答案：B", "B"),
    ("<answer>（Ｂ）</answer>", "B"),
    # The only one that is marked.
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("**B**", "B"),
    ("B) Paris", "B"),
    ("I'd go with (B) since it is Paris.", "B"),
    ("B is the correct answer", "B"),
    ("Because.\r\n\r\nB\r\n", "B"),
    # Words.
    ("The answer is I think B", "B"),
    ("A good one: B", "B"),
    ("<answer>A good one: B</answer>", "B"),
    ("<answer>I think B</answer>", "B"),
    ("The answer is a good one", None),
    ("The answer is A good one", None),
    ("The answer is Berlin", None),
    ("<answer>A city in France</answer>", None),
    ("<answer>a city</answer>", None),
    ("<answer>vitamin C</answer>", None),
    ("<answer>E = mc^2</answer>", None),
    ("<answer>N/A</answer>", None),
    ("<answer>C++</answer>", None),
    ("The speed of light is c", None),
    # A and I that are letters.
    ("The answer is A.", "A"),
    ("The answer is A\n\nBecause B", "A"),
    ("The answer is A because (B) is wrong", "A"),
    ("The answer is I", "I"),
    ("<answer>I.</answer>", "I"),
    ("<answer>(I)</answer>", "I"),
    ("<answer>A</answer>", "A"),
    # What begins with the letter.
    ("<answer>b paris</answer>", "B"),
    ("<answer>B - Paris</answer>", "B"),
    ("<answer>B) X</answer>", "B"),
    ("<answer>B. E. coli</answer>", "B"),
    ("<answer>Option B</answer>", "B"),
    ("<answer>Option A: Rome</answer>", "A"),
    ("<answer>Option (A)</answer>", "A"),
    ("<answer>Option B is right</answer>", "B"),
    ("<answer>\\boxed{B}</answer>", "B"),
    ("<answer>B is wrong, so C</answer>", "C"),
    ("<answer>The capital is Paris, so (B).</answer>", "B"),
    # Something else as well.
    ("<answer>something else (B) Paris</answer>", None),
    ("<answer>something else, (B)</answer>", None),
    ("<answer>something else\n(B) Paris</answer>", None),
    ("<answer>something else\nB</answer>", None),
    # Several, and denied ones.
    ("The answer is A or B", None),
    ("<answer>A, B</answer>", None),
    ("<answer>(A) (B)</answer>", None),
    ("<answer>A. B. C. D.</answer>", None),
    ("<answer>A\nB\nC\nD</answer>", None),
    ("The answer is (A)(B)(C)(D)", None),
    ("**A** **B** **C** **D**", None),
    ("A) Rome\nB) Paris", None),
    ("\\boxed{A \\text{ or } B}", None),
    ("The answer is not B", None),
    ("The answer isn't B", None),
    ("It cannot be B", None),
    ("I don't think B", None),
    ("<answer>B is wrong</answer>", None),
    # The last one, outside of the thought.
    ("The answer is B. No: the answer is C.", "C"),
    ("<think>\\boxed{A}, the answer is A</think> The answer is B.", "B"),
    ("<think>The answer is B</think>", None),
    ("It is \\boxed{42}, so the answer is B.", "B"),
]


@pytest.mark.parametrize(("text", "letter"), CHOSEN)
def test_which_letter_is_chosen(text, letter):
    assert chosen(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        "B (or C)", "B or maybe C", "B, or C", "B and C are right", "(B) and (C)", "B plus C", "C, or possibly B",
        "B or A is right", "Either B or perhaps C",
        "B, but C is also right", "B, possibly C", "B. C is also correct.", "B, although (C) may be equally valid",
        "(B), but option C is right too", "B (C is also possible)", "B - A is just as likely",
    ],
)  # fmt: skip
def test_a_second_letter_in_other_words_is_no_choice_either(text):
    assert multiple_choice(f"<answer>{text}</answer>", solution="B").score == 0.0
    assert multiple_choice(f"The answer is {text}", solution="B").score == 0.0


@pytest.mark.parametrize(
    "text",
    ["B, but C is also tempting", "B. A is also wrong.", "B, while C is also not right", "B, but C is not right too"],
)
def test_a_second_letter_that_is_not_held_for_right_leaves_the_choice(text):
    assert multiple_choice(f"<answer>{text}</answer>", solution="B").score == 1.0
    assert multiple_choice(f"The answer is {text}", solution="B").score == 1.0


def test_an_option_that_is_refused_is_not_chosen():
    assert chosen("(B) is wrong, and so are all others") is None
    assert chosen("Option B is not possible. Option C fits.") == "C"
    assert chosen("(B) is the one that fits") == "B"


@pytest.mark.parametrize(
    "text",
    [
        "answer is " * 30_000,
        "(A" * 50_000,
        "*A" * 50_000,
        "A)\n" * 50_000,
        "answer" + " " * 100_000,
        "\\text{" * 30_000,
        "x" + "\n" * 100_000 + "x",
    ],
    ids=lambda text: text[:8],
)
@processor_time
def test_hostile_choices_take_no_time(text):
    with at_most_cpu_s(1.0):
        assert (
            multiple_choice(text, solution="B").score == multiple_choice(f"<answer>{text}", solution="B").score == 0.0
        )


@pytest.mark.parametrize("solution", ["Paris", "", "A good one", "A, C", "B and C", "AC", "D-Day", "E = mc^2"])
def test_multiple_choice_without_a_gold_letter(solution):
    assert multiple_choice("<answer>B</answer>", solution=solution).score is None


@pytest.mark.parametrize("solution", ["B", "b", "(B)", "B.", "B) Paris", "B Paris", "B: x", "**B**", "\\boxed{B}"])
def test_multiple_choice_with_a_gold_letter(solution):
    assert [multiple_choice(f"<answer>{letter}</answer>", solution=solution).score for letter in "BA"] == [1.0, 0.0]


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
        ("It's not A but (B)", "B"),
        ("A: B", "B"),
        ("I choose [B]", "B"),
        ("<answer>B and [C]</answer>", None),
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
@processor_time
def test_hostile_rows_of_letters_take_no_time(before, text):
    with at_most_cpu_s(1.0):
        multiple_choice(f"{before}{text}</answer>", solution="D")


def test_of_a_long_text_the_end_is_read():
    much = "This is a reason. " * 20_000
    assert chosen(f"{much}The answer is B.") == "B"
    assert chosen(f"The answer is B.{much}") is None
    assert chosen(f"<answer>B {much}</answer>") is None
    assert chosen(f"{much}<answer>B</answer>") == "B"
