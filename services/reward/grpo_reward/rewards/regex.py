"""A pattern."""

import re

from ..author import reward


@reward(columns=[])
def regex(completion: str, *, pattern: re.Pattern[str], full: bool = False) -> float:
    """1 when `pattern` matches somewhere in the completion, with `full` when it matches the whole, else 0.

    `pattern` is a regular expression of Python's `re`; flags stand inside, as in `(?s)`. One that takes for ever meets
    the time limit of a sample like any other reward. One with hundreds of groups inside of each other is refused.
    """
    return float((pattern.fullmatch if full else pattern.search)(completion) is not None)
