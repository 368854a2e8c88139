"""Against completions near the length limit."""

from typing import Annotated

from pydantic import Field

from ..author import reward


@reward(columns=[])
def soft_overlong(
    completion: str,
    *,
    completion_token_ids: list[int],
    max_len: Annotated[int, Field(ge=1)],
    cache_len: Annotated[int, Field(ge=1)],
) -> float:
    """0 up to `max_len − cache_len` tokens, then linear down to −1 at `max_len`, and −1 beyond it.

    With L tokens: clamp((max_len − cache_len − L) / cache_len, −1, 0). Needs `completion_token_ids`.

    Source: DAPO (arXiv 2503.14476), equation 13. ms-swift's falls below −1 beyond `max_len`.
    """
    if cache_len >= max_len:
        raise ValueError(f"cache_len must be less than max_len, but {cache_len} >= {max_len}")
    excess = max_len - cache_len - len(completion_token_ids)
    return max(-1.0, min(0.0, excess / cache_len))
