"""One letter out of several."""

from ..answer import answer_block
from ..author import Score, reward
from ..chosen_option import chosen_option, first_option
from ..option_tokens import plain
from .format import THINK_CLOSING
from .math_boxed import last_box

MAX_CHARS = 20_000
"""Longest answer in characters; of a longer text without an answer the end is read."""


@reward
def multiple_choice(completion: str, *, solution: str) -> Score:
    """1 when the chosen letter is that of `solution`, else 0; unscorable when `solution` does not begin with one.

    The choice is looked for in `<answer>…</answer>`, without one in what follows `</think>`, without that in all of the
    completion, and there in this order:

    1. the last `\\boxed{…}`;
    2. in `<answer>` and in a box, the letter it begins with: `B`, `(B)`, `B.`, `B) Paris`, `B Paris`;
    3. the letter after the last "answer is", "answer:", "correct option is" or `答案`;
    4. a letter at the end, after a colon or a word such as "think";
    5. outside of `<answer>` a letter alone on the last line, or the only one that is marked: `(B)`, `**B**`,
       "option B", `B.` at the start of a line.

    `**B**`, `\\text{B}` and the full-width form are B. "A" and "I" are words as well, and count only where they are
    marked, alone, or followed by no word ("A good one: B" is B). Several letters ("A or B", `(A) (B)`, "A, but B is
    also right", "B but maybe C", "B) Paris or C) Rome") and a letter that is denied ("not B") are no choice, and in
    `<answer>` and in a box a copy of the options, line by line, is none. What is said of other letters in a reason
    ("because (A) is wrong") leaves the choice. The case of a letter does not matter. Of a text without `<answer>` the
    last 20,000 characters are read; an `<answer>` or a box that is longer is no choice.

    Source: the usual form of MMLU and GPQA answers, and where public harnesses look for them.
    """
    gold = _gold(solution)
    if gold is None:
        return Score(None, detail="the column solution does not begin with a letter")
    block = answer_block(completion)
    text = completion.rpartition(THINK_CLOSING)[2] if block is None else block
    chosen = _chosen(text, is_answer=block is not None)
    return Score(float(chosen == gold), log={"choice": chosen})


def _gold(solution: str) -> str | None:
    block = answer_block(solution)
    text = solution if block is None else block
    return first_option(plain(last_box(text) or text))


def _chosen(text: str, *, is_answer: bool) -> str | None:
    if is_answer and len(text) > MAX_CHARS:
        return None
    text = text[-MAX_CHARS:]
    box = last_box(text)
    if box and (letter := _chosen(box, is_answer=True)):
        return letter
    # A box without a choice has been read: what stands around it may still have one.
    return chosen_option(plain(text.replace(f"{{{box}}}", "{}") if box else text), is_answer=is_answer)
