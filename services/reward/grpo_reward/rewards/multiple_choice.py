"""One letter out of several."""

import re

from ..answer import answer_block
from ..author import Score, reward
from .math_boxed import last_box

_LETTER = re.compile(r"\(?([A-Za-z])(?:\)|\.|:|\s|$)")
_SAID = re.compile(r"answer is:? {0,3}[*_]{0,2}\(?([A-Z])(?![A-Za-z])")
_MARKUP = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}|[*_$`]")


@reward
def multiple_choice(completion: str, *, solution: str) -> Score:
    """1 when the chosen letter is that of `solution`, else 0; unscorable when `solution` does not begin with one.

    The choice is what `<answer>…</answer>` begins with, without one what the last `\\boxed{…}` begins with, without
    that the letter after the last "answer is". `B`, `(B)`, `B.`, `B) Paris`, `**B**` and `\\text{B}` are B; a word is
    no letter.

    Source: the usual form of MMLU and GPQA answers.
    """
    gold = _letter(solution)
    if gold is None:
        return Score(None, detail="the column solution does not begin with a letter")
    block = answer_block(completion)
    block = last_box(completion) if block is None else block
    if block is None:
        said = _SAID.findall(completion)
        chosen = said[-1] if said else None
    else:
        chosen = _letter(block)
    return Score(float(chosen == gold), log={"choice": chosen})


def _letter(text: str) -> str | None:
    match = _LETTER.match(_MARKUP.sub(r"\1", text).strip())
    return match.group(1).upper() if match else None
