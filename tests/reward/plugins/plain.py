"""One reward that needs nothing, for tests of what is around it."""

from grpo_reward import reward


@reward
def plain(completion: str) -> float:
    """1 for any text."""
    return 1.0
