"""Mathematical equality of what is boxed."""

from ..answers.gold_text import GoldText
from ..answers.place import boxed
from ..answers.verdict import judged
from ..author import Score, reward


@reward
def math_boxed(completion: str, *, solution: GoldText) -> Score:
    """1 when the last `\\boxed{…}` of the completion equals `solution` mathematically, else 0.

    Without a box, or with one that is not closed, 0; `\\fbox{…}` and `\\boxed 24` are boxes, `\\boxed{}` and
    `\\boxed{answer}` are none. Braces count as in LaTeX, and `$` in a box does not. Several boxes, equality and what
    cannot be parsed are as in `accuracy`.

    Source: the MATH data set's convention (arXiv 2103.03874). ms-swift's `math` reads up to the first closing brace.
    """
    return judged(solution, lambda gold: boxed(completion, listed=gold.reading.is_list))
