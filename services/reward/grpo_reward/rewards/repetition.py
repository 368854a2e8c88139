"""Against loops."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ..author import reward


@reward
def repetition(
    completion: str,
    *,
    n_grams: Annotated[int, Field(ge=1)] = 3,
    max_penalty: Annotated[float, Field(le=0)] = -1.0,
    unit: Literal["words", "tokens"] = "words",
    completion_token_ids: list[int] | None = None,
) -> float:
    """(1 − unique / total) · `max_penalty` over the n-grams; 0 with fewer than n words or tokens.

    With `unit` "words" the n-grams are of lower-case words between white space, as in ms-swift and the R1-Zero
    walk-through (there with `max_penalty` −0.1); with "tokens" of `completion_token_ids`, as in TRL. Words do not see
    loops in languages without blanks between them.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373); defaults as in ms-swift.
    """
    items: Sequence[str | int]
    if unit == "words":
        items = completion.lower().split()
    elif completion_token_ids is not None:
        items = completion_token_ids
    else:
        raise ValueError('no completion_token_ids came with the sample: send them or set unit to "words"')
    total = len(items) - n_grams + 1
    if total < 1:
        return 0.0
    unique = len(set(zip(*(items[start:] for start in range(n_grams)), strict=False)))
    return (1 - unique / total) * max_penalty + 0.0  # never -0.0
