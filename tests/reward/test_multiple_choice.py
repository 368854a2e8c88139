"""Which letter a completion chooses: where it is looked for, what only looks like one, when several make it none."""

import pytest
from tests.reward.cpu_time import at_most_cpu_s, processor_time

from grpo_reward.rewards.multiple_choice import multiple_choice

CHOSEN = [
    ("Answer: B", "B"), ("**Answer:** B", "B"), ("**Answer**: **B**", "B"), ("### Answer: B", "B"), ("ANSWER: B", "B"),
    ("Answer: (B) Paris", "B"), ("Answer: $\\boxed{\\text{(B)}}$", "B"), ("Final Answer: \\(B\\)", "B"),
    ("The correct answer is option B.", "B"), ("The correct answer is B\nExplanation: A is wrong", "B"),
    ("The best choice is B", "B"), ("The answer to this question is B because of its tower", "B"),
    ("{\"answer\": \"B\"}", "B"), ("答案是B。", "B"), ("答案：B", "B"), ("<answer>（Ｂ）</answer>", "B"),
    ("B", "B"), ("b", "B"),
    ("(B)", "B"), ("**B**", "B"), ("B) Paris", "B"), ("I'd go with (B) since it is Paris.", "B"),
    ("B is the correct answer", "B"), ("Because.\r\n\r\nB\r\n", "B"), ("The answer is I think B", "B"),
    ("A good one: B", "B"), ("<answer>A good one: B</answer>", "B"), ("<answer>I think B</answer>", "B"),
    ("The answer is a good one", None), ("The answer is A good one", None), ("The answer is Berlin", None),
    ("<answer>A city in France</answer>", None), ("<answer>a city</answer>", None),
    ("<answer>vitamin C</answer>", "C"), ("<answer>E = mc^2</answer>", None), ("<answer>N/A</answer>", None),
    ("<answer>C++</answer>", None), ("The speed of light is c", None), ("The answer is A.", "A"),
    ("The answer is A\n\nBecause B", "A"), ("The answer is A because (B) is wrong", "A"), ("The answer is I", "I"),
    ("<answer>I.</answer>", "I"), ("<answer>(I)</answer>", "I"), ("<answer>A</answer>", "A"),
    ("<answer>b paris</answer>", None), ("<answer>B - Paris</answer>", "B"), ("<answer>B) X</answer>", "B"),
    ("<answer>B. E. coli</answer>", "B"), ("<answer>Option B</answer>", "B"), ("<answer>Option A: Rome</answer>", "A"),
    ("<answer>Option (A)</answer>", "A"), ("<answer>Option B is right</answer>", "B"),
    ("<answer>\\boxed{B}</answer>", "B"), ("<answer>B is wrong, so C</answer>", "C"),
    ("<answer>The capital is Paris, so (B).</answer>", "B"), ("<answer>something else (B) Paris</answer>", "B"),
    ("<answer>something else, (B)</answer>", "B"), ("<answer>something else\n(B) Paris</answer>", "B"),
    ("<answer>something else\nB</answer>", "B"), ("The answer is A or B", None), ("<answer>A, B</answer>", None),
    ("<answer>(A) (B)</answer>", None), ("<answer>A\nB\nC\nD</answer>", "D"), ("The answer is (A)(B)(C)(D)", None),
    ("**A** **B** **C** **D**", None), ("A) Rome\nB) Paris", "B"), ("\\boxed{A \\text{ or } B}", None),
    ("The answer is not B", None), ("The answer isn't B", None), ("It cannot be B", None), ("I don't think B", None),
    ("<answer>B is wrong</answer>", None), ("The answer is B. No: the answer is C.", "C"),
    ("<think>\\boxed{A}, the answer is A</think> The answer is B.", "B"), ("<think>The answer is B</think>", None),
    ("It is \\boxed{42}, so the answer is B.", "B"),
    ("<answer>The answer is A. But wait, it's actually C.</answer>", "C"), ("It must be B", "B"),
    ("<answer>It must be B</answer>", "B"), ("<answer>B. Vitamin C or D</answer>", "B"),
    ("<answer>B. C. elegans</answer>", "B"), ("<answer>B because (A) is too small</answer>", None),
    ("<answer>B or C</answer>", None), ("<answer>B, or C</answer>", None),
    ("<answer>B) Paris or C) Rome</answer>", None), ("<answer>B. Paris\nC. Rome</answer>", "C"), ("A dog barks", None),
    ("<answer>It is not A but B</answer>", "B"), ("So it's B.", "B"), ("<answer>A - Paris</answer>", "A"),
    ("<answer>B – Paris</answer>", "B"), ("That leaves B.", "B"), ("<answer>B: Paris</answer>", "B"),
    ("<answer>B) P(A) + P(B)</answer>", "B"), ("<answer>The answer is A, no, C</answer>", None),
    ("<answer>A <b>or</b> \\boxed{C}</answer>", "C"),
    ("Let me see.\n\n### Final Answer\n\n**B**", "B"),
    ("The answer is C?\nNo, B fits.\n\n### Final Answer\n\n**B**", "B"),
    ("**Final Answer**\n\nB", "B"), ("## Answer\n\n(B)", "B"), ("### ✅ Final Answer\n\n**B. Paris**", "B"),
    ("### Answer\nB", "B"), ("**Answer**\nB. Paris", "B"), ("So the correct answer is\n\n**B**", "B"),
    ("The answer is\nB", "B"), ("**Correct Answer:**\n\nB", "B"), ("### Answer\n\n$\\boxed{B}$", "B"),
    ("### Answer\nThe best description is option B", "B"), ("### Answer\n\nA is wrong, so C", "C"),
    ("The answer is C.\n\n### Final Answer\n\n**B**\n\nOption C fails.", "B"), ("### Answer\nnot B", None),
    ("### Answer\n\nA: too small\nB: fits\nC: too large", None), ("### Answer\n\nA good one", None),
    ("Let me find the answer\nA is too small", None), ("### Answer\nB\n\n### Final Answer\nC", "C"),
    ("The correct answer is B.\n\nOption C might look like the right answer, but it fails.", "B"),
    ("The answer is B.\n\nNote that an answer of C would need more heat.", "B"), ("B seems to be the answer", "B"),
    ("The answer is B. A common wrong answer is C.", "B"), ("The answer is (B) because A and C are wrong.", "B"),
    ("The answer is (B), since (A), (C), and (D) are all incorrect.", "B"), ("The answer is B and C is wrong", "B"),
    ("The correct answer is (D) I and II.", "D"), ("The answer is (D) I and III only", "D"),
    ("The answer is **(D) both I and II**.", "D"), ("The answer is (B) Hepatitis C.", "B"),
    ("The answer is B) Hepatitis C", "B"), ("The answer is **B) Vitamin C**", "B"),
    ("The answer is B, Vitamin C.", "B"),
    ("The answer is option B: Vitamin C", "B"), ("The answer is B - Vitamin C", "B"),
    ("The answer is B (Vitamin C).", "B"), ("The answer is B) Type O blood", "B"), ("The answer is (A) 37°C", "A"),
    ("The answer is (A) E. coli", "A"), ("The correct option: (A) John F. Kennedy", "A"), ("Answer: (A) X > Y", "A"),
    ("The answer is therefore (A) Company X will win.", "A"), ("答案是(A) point P is inside.", "A"),
    ("The answer is (A) because (B) is a metal.", "A"), ("The answer is (A), as (B) and (C) are metals.", "A"),
    ("<answer>D) Both A) and B)</answer>", "D"), ("D. All of the above (A, B and C)", "D"),
    ("(A) looks right, but the answer is (B) Vitamin C", "B"), ("The answer is B, I think", "B"),
    ("B\n\nExplanation: Vitamin C dissolves in water.", "B"), ("**B**\n\nThat is why Vitamin C dissolves.", "B"),
    ("B\n\nNo, the answer is C.", "C"), ("A\nB\nC", "C"), ("The answer is (A) or B", None),
    ("The answer is (A), (B) and (C)", None), ("The answer is B, C", None), ("The answer is (B) and (C)", None),
    ("The answer is (B) Paris or (C) Rome", None), ("The answer is option A or option B", None),
    ("The answer is B (or C)", None), ("The answer is (A) Rome, no, the answer is (B) Paris", None),
    ("The answer to part (a) is (B) x", None),
    ("The answer is A and C, B is wrong", None), ("The answer is A and C because B and D are wrong", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "letter"), CHOSEN)
def test_which_letter_is_chosen(text: str, letter: str | None):
    result = multiple_choice(text, solution="B) Paris")
    assert (result.log, result.score) == ({"choice": letter}, float(letter == "B"))


@pytest.mark.parametrize(
    "solution",
    [
        "Paris",
        "",
        "A good one",
        "A, C",
        "B and C",
        "AC",
        "D-Day",
        "E = mc^2",
        "B. Paris\nC. Rome",
        "B) Paris or C) Rome",
    ],
)
def test_without_a_gold_letter_it_is_unscorable(solution: str):
    assert multiple_choice("<answer>B</answer>", solution=solution).score is None


@pytest.mark.parametrize(
    "solution", ["B", "b", "(B)", "B.", "B) Paris", "B Paris", "B: x", "**B**", "\\boxed{B}", "B. Vitamin C"]
)
def test_how_a_gold_letter_may_be_written(solution: str):
    assert [multiple_choice(f"<answer>{letter}</answer>", solution=solution).score for letter in "BA"] == [1.0, 0.0]


def test_of_a_long_text_the_end_is_read():
    much = "This is a reason. " * 20_000
    for text, score in (
        (f"{much}The answer is B.", 1.0),
        (f"The answer is B.{much}", 0.0),
        (f"<answer>B {much}</answer>", 0.0),
        (f"{much}<answer>B</answer>", 1.0),
    ):
        assert multiple_choice(text, solution="B").score == score


@pytest.mark.parametrize(
    "text",
    [
        "answer is " * 30_000, "(A" * 50_000, "*A" * 50_000, "A)\n" * 50_000, "answer" + " " * 100_000,
        "\\text{" * 30_000, "x" + "\n" * 100_000 + "x", "B) x, C) is wrong " * 10_000, "B or " * 30_000,
        "B) " + "(" * 100_000, "B.\n" + "A\n" * 50_000, "B) not or " * 20_000,
        "the answer\n" * 20_000, "the " * 50_000, "B, A" + ", C and D" * 20_000, "not " * 30_000, "A. " * 50_000,
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
@processor_time
def test_hostile_choices_take_no_time(text: str):
    with at_most_cpu_s(1.0):
        for before in ("", "<answer>", "The answer is "):
            multiple_choice(f"{before}{text}</answer>", solution="D")
