"""Signs of reasoning step by step."""

import re
from typing import Annotated

from pydantic import Field

from ..author import reward

_STEP = re.compile(r"Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,", re.MULTILINE)


@reward
def reasoning_steps(completion: str, *, steps: Annotated[int, Field(ge=1)] = 3) -> float:
    """min(1, n / `steps`), where n counts `Step 1:`, `1.` at a line's start, bullets, `First,` … `Finally,`.

    A bullet is `-` or `*` right after a line break, as in the source: one on the very first line does not count
    ("- a\\n- b\\n- c" has two), and one behind blanks does not either. "first," in lower case is no step.

    Source: open-r1, `reasoning_steps_reward`, whose `1.` counts at the start of the text only; at every line's start
    it counts in the R1-Zero walk-through.
    """
    return min(1.0, len(_STEP.findall(completion)) / steps)
