"""Against loops."""

from typing import Annotated

from pydantic import Field

from ..author import reward


@reward
def repetition(
    completion: str,
    *,
    n_grams: Annotated[int, Field(ge=1)] = 3,
    max_penalty: Annotated[float, Field(le=0)] = -1.0,
) -> float:
    """(1 − unique / total) · `max_penalty` over the n-grams of the lower-case words; 0 with fewer than n words.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373); defaults as in ms-swift.
    """
    words = completion.lower().split()
    total = len(words) - n_grams + 1
    if total < 1:
        return 0.0
    unique = len(set(zip(*(words[start:] for start in range(n_grams)), strict=False)))
    return (1 - unique / total) * max_penalty
