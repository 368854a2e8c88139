"""Long enough."""

from typing import Annotated

from pydantic import Field

from ..author import reward


@reward
def min_length(completion: str, *, min_chars: Annotated[int, Field(ge=0)] = 1024) -> float:
    """1 when the completion has more than `min_chars` characters, else 0.

    Source: the example reward of ms-swift's GRPO documentation, `DummyLengthRewardFunction`.
    """
    return float(len(completion) > min_chars)
