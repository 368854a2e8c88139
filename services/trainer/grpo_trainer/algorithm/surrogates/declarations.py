"""What a surrogate declares about itself."""

from collections.abc import Callable
from typing import Any, TypeVar

SurrogateT = TypeVar("SurrogateT", bound=Callable[..., Any])


def zero_without_advantage(surrogate: SurrogateT) -> SurrogateT:
    """Declare that loss and gradient of a token are 0 where its advantage is 0, whatever its ratio."""
    surrogate.zero_without_advantage = True  # type: ignore[attr-defined]
    return surrogate
