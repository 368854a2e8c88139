"""Mathematical equality with a gold answer."""

from dataclasses import replace

from ..answers.gold_text import GoldText
from ..answers.verdict import UNPARSED, answer_in, judged
from ..author import Score, reward


@reward
def accuracy(
    completion: str,
    *,
    solution: GoldText,
    unparsable: float | None = None,
    prefix: str = "",
    truncated: bool | None = None,
) -> Score:
    """1 when the answer equals `solution` mathematically, else 0; `unparsable` when `solution` cannot be parsed.

    The answer is what stands in the first `<answer>…</answer>` behind the thought, without one there in the first of
    the whole completion, without such a block in the last box, without that behind "the final answer is", in a last
    line such as `Answer: 34` or "The answer is 34", or below a last heading `### Final Answer`. A box in the block is
    the answer. Boxes with nothing but a comma, "and" or "or" between them are one answer of several parts, and so are
    boxes on following lines where `solution` is a list. `solution` may be a whole worked solution; its answer is found
    in the same way. A thought that never ends announces nothing, but a block or a box in it counts; `format` pays no
    such completion.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Text is compared first: in one spelling of signs, fonts, blanks and dollar signs equal text is right. Then what it
    is as mathematics, in LaTeX or as people type it: `2√2`, `10⁵`, `5 sqrt(3)`, `pi/3`, `x**2`, `3.2e5`, `2 3/4`,
    `1 234 567`, `10{,}000`, `3, 5 or 7`, `5 million`, `minus 5`, `half of 7`, `3万`, `负3`, digits of any script. `2,3`
    without a blank is 2.3, unless it answers a list; `45%` is 45 and 0.45. All of a text has to be understood: of a
    formula that is not, no part counts, and beside a `solution` of that kind only equal text is right.

    A noun does not count (`24 apples`), nor a unit that a blank sets off from its number (`5 m/s`) beside a number
    without one. Of two with units both have to agree, in their usual spellings (`5 meters per second`, `$45`, `52_8`);
    nothing is converted, and `5m` is a formula. `12:30` is compared as text. Of a letter with a value (`(C) 12`, `C.
    12`) either is right, and both only together. A `solution` of several words without a digit or LaTeX, or of more
    than four in which nothing is found, is prose and cannot be parsed, and no more can the text of a null (`None`,
    `nan`).

    With a decimal point in either, values are equal to six decimals, and those below 0.001 to three digits.

    `unparsable` is null by default: such a sample is unscorable and takes no part. The R1-Zero walk-through gives it
    0.5, open-r1 1, ms-swift 0; a number that every sample of a group gets teaches nothing, but moves the run's mean.
    `cosine`, `length` and `math_boxed`, which ask this reward, leave such samples unscorable.

    Two expressions with different values at a point are not equal; nothing is multiplied out to find that. Those with
    more than 200 terms when multiplied out, such as `(x+y)^{29}(z+w)^{29}`, are equal when their values are at three
    points, those with numbers of more than 200,000 digits when they are powers of the same number. Where there are no
    values (sets, equations, `\\sum`), what is so large scores 0 at once, and so do more than 12 nested brackets or 1000
    characters, unless the solution has such a thing, too, and answers of more than 500 boxes. What still takes more
    than 0.9 s of processor time scores 0, with `too_costly` in its log: a time-out would take the sample out of the
    training, and a policy would learn to hide wrong answers so. When the solution itself takes as long, the sample is
    unscorable.

    Source: math_verify compares, with TRL's choice that an unparsable gold answer is no score and ms-swift's `<answer>`
    block. The order of arguments is verify(gold, answer): it is not symmetric.
    """
    result = judged(solution, lambda gold: answer_in(prefix + completion, gold, truncated))
    return replace(result, score=unparsable) if result.log == UNPARSED else result
