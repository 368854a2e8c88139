"""A pattern."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from ..author import reward


def _compiled(pattern: Any) -> Any:
    if not isinstance(pattern, str):
        return pattern
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:  # pydantic keeps to itself what is wrong with it, and where
        raise PydanticCustomError("pattern", "no regular expression: {reason}", {"reason": str(error)}) from None


@reward(columns=[])
def regex(
    completion: str, *, pattern: Annotated[re.Pattern[str], BeforeValidator(_compiled)], full: bool = False
) -> float:
    """1 when `pattern` matches somewhere in the completion, with `full` when it matches the whole, else 0.

    `pattern` is a regular expression of Python's `re`; flags stand inside, as in `(?s)`. One that takes for ever meets
    the time limit of a sample like any other reward. One with hundreds of groups inside of each other is refused.

    Source: ours; open-r1's and TRL's rewards of form are such patterns, each a function of its own there.
    """
    return float((pattern.fullmatch if full else pattern.search)(completion) is not None)
