"""Accuracy, scaled by length."""

import math
from typing import Annotated, Literal

from pydantic import Field

from ..author import Score, reward
from .accuracy import accuracy


@reward(columns=["solution"])
def cosine(
    completion: str,
    *,
    solution: str,
    max_len: Annotated[int, Field(ge=1)],
    unit: Literal["tokens", "characters"] = "tokens",
    min_len_value_correct: float = 1.0,
    max_len_value_correct: float = 0.5,
    min_len_value_wrong: float = -0.5,
    max_len_value_wrong: float = 0.0,
    completion_token_ids: list[int] | None = None,
) -> Score:
    """A right answer earns more when it is short, a wrong one loses less when it is long. Needs `max_len`.

    With a = value at length 0, b = value at `max_len` and x = min(length / `max_len`, 1):
    b + (a − b) · (1 + cos(π·x)) / 2. Beyond `max_len` it stays at b. Right or wrong is what `accuracy` says; where
    that is unscorable, so is this.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373); names and defaults as in ms-swift, whose
    own falls and rises again beyond `max_len`. The R1-Zero walk-through has correct 1.0 → 0.8 and wrong −0.5 → −0.1
    over 1000 characters.
    """
    correct = accuracy(completion, solution=solution)
    if correct.score is None:
        return correct
    if unit == "characters":
        length = len(completion)
    elif completion_token_ids is not None:
        length = len(completion_token_ids)
    else:
        raise ValueError('no completion_token_ids came with the sample: send them or set unit to "characters"')
    if correct.score >= 1:
        shortest, longest = min_len_value_correct, max_len_value_correct
    else:
        shortest, longest = min_len_value_wrong, max_len_value_wrong
    progress = min(length / max_len, 1.0)
    return Score(longest + (shortest - longest) * (1 + math.cos(math.pi * progress)) / 2)
